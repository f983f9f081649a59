"""From probes to hosts: ranks that share the cores of one, ranks on several, and networks whose links are all alike."""

import math

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, Schedule, predict_time
from ringsim.calibration.host_costs import calibrate_host, calibrate_hosts, calibrate_uniform
from ringsim.calibration.probe_times import shift_s
from ringsim.libraries import GLOO, OURS
from ringsim.measurements.measurements import Measurements, Probe
from ringsim.network import MessageCosts, network_text, quantities, read_network
from ringsim.network.spec import Host, Link, Nics, Processor, SlowLink, Spec
from ringsim.registry import build
from tests.refusals import said_by
from tests.ringsim.topologies import costs_of

PROCESSOR = Processor(50e-6, 50e-6, reduce_bytes_per_s=10e9, copy_bytes_per_s=4e9)
SIZES = (64, 4096, 2**17, 2**19, 2**21, 2**23)
GBIT = 125e6
RANK = "rank.send_overhead rank.receive_overhead rank.reduce_bandwidth rank.copy_bandwidth"
TWO_CORES = Network("true", Spec(host=Host(cores=2), processor=PROCESSOR))


def ping_s(cluster: Network, num_ranks: int, rank: int, size: int) -> float:
    """The simulated time of one message from `rank` to the next."""
    step = ((rank,), ((rank + 1) % num_ranks,), (0,), (False,))
    return predict_time(Schedule.from_columns(Collective.ALL_REDUCE, "ping", num_ranks, 1, [step]), cluster, size)  # type: ignore[list-item]


def probed(cluster: Network, hosts: tuple[int, ...], machines: tuple[int, ...] | None = None) -> Measurements:
    """Return the measurements that probes would make on `cluster`; after a pause ranks have also fallen asleep."""
    processor, num_ranks = cluster.spec.processor, len(hosts)
    overheads = processor.send_overhead_s + processor.receive_overhead_s
    times = []
    for size in SIZES:
        times += [
            ("shift", size, shift_s(cluster, num_ranks, size)),
            ("shift_cpu", size, overheads + 2 * size / processor.copy_bytes_per_s),
            ("reduce_cpu", size, size / processor.reduce_bytes_per_s),
        ]
        if size != 4096:
            times.append(("shift/rested", size, 2e-4 + shift_s(cluster, num_ranks, size, rested=True)))
        times += [(f"ping/{rank}", size, ping_s(cluster, num_ranks, rank, size)) for rank in range(num_ranks)]
    provenance = {"hosts": list(hosts), "machines": list(machines or (0,) * num_ranks)}
    return Measurements(num_ranks, provenance, tuple(Probe(kind, size, 1, (time_s,)) for kind, size, time_s in times))


def without(measurements: Measurements, *kinds: str) -> Measurements:
    """The same without some kinds of probes."""
    kept = tuple(probe for probe in measurements.probes if not probe.kind.startswith(kinds))
    return replace(measurements, probes=kept)


SLOW = tuple(SlowLink(f"rank2.{way}", bandwidth_bytes_per_s=GBIT / 4) for way in ("out", "in"))
BURSTS = "host.link.burst host.nic.burst"


@pytest.mark.parametrize(
    ("host", "rest", "hosts", "machines", "places"),
    [
        # One host, whose memory is what limits in one case.
        (Host(cores=2, link=Link(2e-4)), {}, (0,) * 2, (0,) * 2, RANK + " host.link.latency host.memory_bandwidth"),
        (Host(cores=2, memory_bytes_per_s=3e9, link=Link(2e-4)), {}, (0,) * 4, (0,) * 4,
         RANK + " host.link.latency host.memory_bandwidth"),
        (Host(cores=2, link=Link(2e-4)), {}, (0,) * 7, (0,) * 7, RANK + " host.link.latency host.memory_bandwidth"),
        # Namespaces of a rank each: ports of a known rate and latency, of which a host's may be slow.
        (Host(cores=2, link=Link(3e-4, GBIT)), {}, (0, 1), (0, 0), RANK + " host.link.latency host.link.bandwidth"),
        (Host(cores=2, link=Link(3e-4, GBIT)), {}, (0, 1, 2, 3, 4), (0,) * 5, "host.link.latency host.link.bandwidth"),
        (Host(cores=2, link=Link(3e-4, GBIT)), {"slow_links": SLOW}, (0, 1, 2, 3), (0,) * 4,
         "host.cores host.link.bandwidth slow_link.bandwidth"),
        # Hosts of several ranks: the NIC's rate, half of the latency at each end, and the link within a host. Those of
        # one machine share its cores equally.
        (Host(link=Link(0.0, 2e9), nics=Nics(1e-4, GBIT)), {"ranks_per_host": 2}, (0, 0, 1, 1), (0, 0, 1, 1),
         "host.nic.latency host.nic.bandwidth host.link.bandwidth"),
        (Host(cores=1, nics=Nics(1e-4, GBIT)), {"ranks_per_host": 2}, (0, 0, 1, 1), (0,) * 4, "host.cores"),
        # What links save up, also longer than most of their messages; without a burst nothing.
        (Host(cores=2, link=Link(3e-5, GBIT)), {}, (0, 1), (0, 0), BURSTS),
        (Host(cores=2, link=Link(3e-5, GBIT, burst_bytes=2**16)), {}, (0, 1), (0, 0), BURSTS),
        (Host(cores=2, link=Link(3e-5, GBIT, burst_bytes=2**17)), {}, (0, 1, 2), (0, 0, 0), BURSTS),
        (Host(cores=2, link=Link(3e-5, GBIT, burst_bytes=700_000)), {}, (0, 1), (0, 0), BURSTS),
        (Host(nics=Nics(1e-5, GBIT, burst_bytes=2**17)), {"ranks_per_host": 2}, (0, 0, 1, 1), (0, 0, 1, 1), BURSTS),
    ],
    ids=range(13),
)  # fmt: skip
def test_calibration_finds_the_hosts(
    host: Host, rest: dict[str, object], hosts: tuple[int, ...], machines: tuple[int, ...], places: str
) -> None:
    """The parameters behind the probes are found; the file holds the same network, which predicts twice the ranks."""
    true = Network("true", Spec(host=host, processor=PROCESSOR, **rest))  # type: ignore[arg-type]
    measurements = probed(true, hosts, machines)
    found = calibrate_host(measurements, 2) if max(hosts) == 0 else calibrate_hosts(measurements, 2)
    for place in places.split():
        rel = 1e-6 if place.startswith("rank.") else 0.1 if place.endswith("latency") else 0.05
        assert quantities(found.spec)[place] == pytest.approx(quantities(true.spec)[place], rel=rel), place
    assert found.spec.ranks_per_host == true.spec.ranks_per_host
    assert [slow.link for slow in found.spec.slow_links] == [slow.link for slow in true.spec.slow_links]
    for size in (SIZES[0], SIZES[-1]):
        assert shift_s(found, len(hosts), size) == pytest.approx(shift_s(true, len(hosts), size), rel=0.005)
    again = quantities(read_network(network_text(found), "again.toml").spec)
    assert again == pytest.approx(quantities(found.spec), rel=1e-3)
    if not true.spec.slow_links and true.spec.ranks_per_host is None:
        twice = build(Collective.ALL_REDUCE, "ring", 2 * len(hosts))
        assert predict_time(twice, found, 2**24) == pytest.approx(predict_time(twice, true, 2**24), rel=0.05)


@pytest.mark.parametrize(("num_cores", "of_each"), [(2, 1), (4, 2), (3, None), (1, None)])
def test_hosts_of_one_machine_share_its_cores_equally(num_cores: int, of_each: int | None) -> None:
    """Where they can; and hosts that are machines have cores enough."""
    true = Network("true", Spec(host=Host(nics=Nics(100e-6, GBIT)), ranks_per_host=2, processor=PROCESSOR))
    assert calibrate_hosts(probed(true, (0, 0, 1, 1)), num_cores).spec.host.cores == of_each
    assert calibrate_hosts(probed(true, (0, 0, 1, 1), (0, 0, 1, 1)), num_cores).spec.host.cores is None


def test_what_a_call_takes_beside_its_message() -> None:
    """Of ours what is more than the message's own; of torch's all, since nothing is sent; without probes nothing.

    After a computation it is more by what it takes after a walk through memory less what it takes without one.
    """
    measurements = probed(TWO_CORES, (0,) * 4)
    message_s = measurements.probes_of("shift")[0].median_s

    def calibrated(**times: float) -> Network:
        probes = tuple(Probe(kind.replace("_", "/"), 64, 1, (time_s,)) for kind, time_s in times.items())
        return calibrate_host(replace(measurements, probes=measurements.probes + probes), 2)

    found = calibrated(call=message_s + 3e-4, call_dist=2e-4)
    assert [library.call_cost(found).call_s for library in (OURS, GLOO)] == pytest.approx([3e-4, 2e-4])
    assert OURS.call_cost(calibrated(call=message_s / 2)).call_s == GLOO.call_cost(calibrated()).call_s == 0.0
    found = calibrated(call_warm=2e-4, call_cold=5e-4, call_async=9e-4, call_dist_warm=1e-4, call_dist_cold=3e-4)
    for is_async, ours_s in ((False, 3e-4), (True, 7e-4)):
        cold = [library.call_cost(found, is_async=is_async).after_s(1.0) for library in (OURS, GLOO)]
        assert cold == pytest.approx([ours_s, 2e-4])
    assert (GLOO.call_cost(found).after_s(5e-5), GLOO.call_cost(found).after_s(0)) == (pytest.approx(5e-5), 0.0)


@pytest.mark.parametrize(("num_ranks", "core_s"), [(2, 100e-6), (4, 150e-6), (8, 100e-6)])
def test_a_further_message_in_flight_keeps_a_core_from_others(num_ranks: int, core_s: float) -> None:
    """Where ranks outnumber cores, and it takes longer than the CPU time; the smallest message comes out anyway."""
    true = TWO_CORES.with_spec(host=Host(cores=2, link=Link(latency_s=400e-6)))
    measurements = probed(true, (0,) * num_ranks)
    one_s = measurements.probes_of("shift")[0].median_s
    for several_s in (one_s + 3 * 300e-6, 31 * one_s):  # the latter is of a burst that also waited for something else
        several = Probe("shift", 64, 4, (several_s,))
        found = calibrate_host(replace(measurements, probes=(*measurements.probes, several)), 2)
        assert shift_s(found, num_ranks, 64) == pytest.approx(one_s, rel=1e-3)
        processor = found.spec.processor
        if several_s < 31 * one_s:
            assert processor.send_overhead_s + processor.receive_overhead_s == pytest.approx(core_s)


def test_latency_that_passes_while_cores_are_at_work_comes_out() -> None:
    """Two ranks share a core, so that one's message travels while the other's is at its end."""
    host = Host(cores=1, nics=Nics(latency_s=80e-6, bandwidth_bytes_per_s=GBIT), link=Link(bandwidth_bytes_per_s=1e9))
    true = Network("true", Spec(host=host, ranks_per_host=2, processor=PROCESSOR))
    found = calibrate_hosts(probed(true, (0, 0, 1, 1)), 2)
    assert shift_s(found, 4, 64) == pytest.approx(shift_s(true, 4, 64), rel=1e-3)


def test_links_without_a_rate_save_nothing_up() -> None:
    """However fast a message is: there cores or memory limit long messages, and a pause changes nothing."""
    measurements = probed(TWO_CORES, (0, 1))
    quick = Probe("shift", 2**17, 1, (9e-5,)), Probe("shift/rested", 2**17, 1, (3e-4,))
    others = tuple(p for p in measurements.probes if p.size_bytes != 2**17 or p.kind not in ("shift", "shift/rested"))
    assert calibrate_hosts(replace(measurements, probes=(*others, *quick)), 2).spec.host.link.burst_bytes == 0


UNIFORM = MessageCosts(latency_s=30e-6, bandwidth_bytes_per_s=2e9, reduce_bytes_per_s=8e9, gap_s=12e-6)


def uniform(noise: tuple[float, ...] = (1.0,), num_ranks: int = 4) -> Measurements:
    """The probes of `UNIFORM`, each measured several times with the factors of `noise`."""
    alpha, bandwidth = UNIFORM.latency_s + UNIFORM.gap_s, UNIFORM.bandwidth_bytes_per_s
    times = [("shift", size, 1, alpha + size / bandwidth) for size in (64, 4096, 2**17, 2**20)]
    times += [("shift", 64, 4, alpha + 64 / bandwidth + 3 * UNIFORM.gap_s)]
    times += [("reduce", size, 1, size / UNIFORM.reduce_bytes_per_s) for size in (4096, 2**20)]
    probes = [Probe(kind, size, k, tuple(time * factor for factor in noise)) for kind, size, k, time in times]
    return Measurements(num_ranks, {"machine": "made up"}, tuple(probes))


@pytest.mark.parametrize("noise", [(1.0,), (0.9, 1.0, 1.1, 1.0, 30.0)], ids=["exact", "with outliers"])
def test_calibration_finds_a_uniform_network(noise: tuple[float, ...]) -> None:
    """All four parameters come back, also when one time in five is far off; a single rank has a free network."""
    assert costs_of(calibrate_uniform(uniform(noise))) == pytest.approx(UNIFORM, rel=1e-3)
    assert costs_of(calibrate_uniform(Measurements(1, {}))) == (0.0, math.inf, math.inf, 0.0, 0.0)


def test_times_that_do_not_grow_give_no_bandwidth() -> None:
    """Where noise hides the size, the bandwidth is infinite and the latency the median; never a negative rate."""
    flat = [Probe("shift", size, 1, (time,)) for size, time in ((64, 3e-3), (4096, 2e-3), (2**20, 1e-3))]
    burst = [Probe("shift", 64, 4, (1e-3,)), Probe("reduce", 64, 1, (1e-6,)), Probe("reduce", 4096, 1, (2e-6,))]
    network = costs_of(calibrate_uniform(Measurements(4, {}, (*flat, *burst))))
    assert (network.bandwidth_bytes_per_s, network.latency_s, network.gap_s) == (math.inf, 2e-3, 0.0)


def test_missing_probes_are_named(snapshot: SnapshotAssertion) -> None:
    """Probes of elapsed times are missed too; a rank alone needs none."""
    assert calibrate_host(Measurements(1, {}, ()), 2).spec.host.cores == 2
    kinds = ("shift", "shift_cpu", "reduce_cpu")
    said = [said_by(ValueError, calibrate_host, without(probed(TWO_CORES, (0, 0)), kind), 2) for kind in kinds]
    for measurements in (without(probed(TWO_CORES, (0, 1)), "ping"), Measurements(2, {})):
        said.append(said_by(ValueError, calibrate_hosts, measurements, 2))
    said += [said_by(ValueError, calibrate_uniform, without(uniform(), kind)) for kind in ("shift", "reduce")]
    assert said == snapshot
