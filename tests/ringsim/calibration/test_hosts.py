"""From probes to hosts: ranks that share the cores of one, and ranks on several."""

import math
from dataclasses import replace

import pytest

from ringsim import Network, Schedule, predict_time
from ringsim.calibration.hosts import calibrate_host, calibrate_hosts, calibrate_uniform
from ringsim.calibration.probe_times import shift_s
from ringsim.measurements.measurements import Measurements, Probe
from ringsim.network.cluster import Cluster
from ringsim.network.file_reader import read_network
from ringsim.network.file_writer import network_text
from ringsim.network.spec import Host, Link, Nics, Processor, SlowLink, Spec
from ringsim.registry import build
from ringsim.schedule.collective import Collective
from ringsim.simulation import GLOO, OURS

TRUE = Processor(send_overhead_s=50e-6, receive_overhead_s=50e-6, reduce_bytes_per_s=10e9, copy_bytes_per_s=4e9)
SIZES = (64, 4096, 2**17, 2**21)


def measured_on(cluster: Cluster, num_ranks: int, sizes: tuple[int, ...] = SIZES) -> Measurements:
    """Return the measurements that probes would make on `cluster`."""
    processor = cluster.spec.processor
    overheads = processor.send_overhead_s + processor.receive_overhead_s
    probes = [Probe("shift", size, 1, (shift_s(cluster, num_ranks, size),)) for size in sizes]
    probes += [Probe("shift_cpu", size, 1, (overheads + 2 * size / processor.copy_bytes_per_s,)) for size in sizes]
    probes += [Probe("reduce_cpu", size, 1, (size / processor.reduce_bytes_per_s,)) for size in sizes]
    return Measurements(num_ranks, {}, tuple(probes))


@pytest.mark.parametrize(("num_ranks", "memory"), [(2, float("inf")), (4, 3e9), (7, float("inf"))])
def test_calibration_finds_the_host(num_ranks: int, memory: float) -> None:
    """Overheads, copying, adding, latency, and the memory's bandwidth where that is what limits."""
    host = Host(cores=2, memory_bytes_per_s=memory, link=Link(latency_s=200e-6))
    measurements = measured_on(Cluster("true", Spec(host=host, processor=TRUE)), num_ranks)
    cluster = calibrate_host(measurements, 2)
    found, elapsed = cluster.spec, measurements.probes_of("shift")
    for probe in (elapsed[0], elapsed[-1]):
        assert shift_s(cluster, num_ranks, probe.size_bytes) == pytest.approx(probe.median_s, rel=0.05)
    for field in ("send_overhead_s", "receive_overhead_s", "reduce_bytes_per_s", "copy_bytes_per_s"):
        assert getattr(found.processor, field) == pytest.approx(getattr(TRUE, field), rel=1e-6)
    assert found.host.link.latency_s == pytest.approx(200e-6, rel=1e-2)
    assert found.host.memory_bytes_per_s == pytest.approx(memory, rel=0.05)


def test_what_a_call_takes_beside_its_message() -> None:
    """Of ours what is more than the message's own; of torch's all, since nothing is sent; without probes nothing.

    After a computation it is more by what it takes after a walk through memory less what it takes without one.
    """
    measurements = measured_on(Cluster("true", Spec(host=Host(cores=2), processor=TRUE)), 4)
    message_s = measurements.probes_of("shift")[0].median_s

    def calibrated(**times: float) -> Cluster:
        probes = tuple(Probe(kind.replace("_", "/"), 64, 1, (time_s,)) for kind, time_s in times.items())
        return calibrate_host(replace(measurements, probes=measurements.probes + probes), 2)

    found = calibrated(call=message_s + 3e-4, call_dist=2e-4)
    assert [runtime.call_s(found) for runtime in (OURS, GLOO)] == pytest.approx([3e-4, 2e-4])
    assert OURS.call_s(calibrated(call=message_s / 2)) == GLOO.call_s(calibrated()) == 0.0
    found = calibrated(call_warm=2e-4, call_cold=5e-4, call_async=9e-4, call_dist_warm=1e-4, call_dist_cold=3e-4)
    cold = [runtime.call_s(found, computed_s=1.0) for runtime in (OURS, GLOO)]
    assert cold == pytest.approx([3e-4, 2e-4])
    in_thread = [runtime.call_s(found, computed_s=1.0, is_async=True) for runtime in (OURS, GLOO)]
    assert in_thread == pytest.approx([7e-4, 2e-4])
    assert (GLOO.call_s(found, computed_s=5e-5), GLOO.call_s(found)) == (pytest.approx(5e-5), 0.0)


@pytest.mark.parametrize(("num_ranks", "core_s"), [(2, 100e-6), (4, 150e-6), (8, 100e-6)])
def test_a_further_message_in_flight_keeps_a_core_from_others(num_ranks: int, core_s: float) -> None:
    """Where ranks outnumber cores, and it takes longer than the CPU time; the smallest message comes out anyway."""
    true = Cluster("true", Spec(host=Host(cores=2, link=Link(latency_s=400e-6)), processor=TRUE))
    measurements = measured_on(true, num_ranks)
    one_s = measurements.probes_of("shift")[0].median_s
    several = Probe("shift", 64, 4, (one_s + 3 * 300e-6,))
    found = calibrate_host(Measurements(num_ranks, {}, (*measurements.probes, several)), 2)
    processor = found.spec.processor
    assert processor.send_overhead_s + processor.receive_overhead_s == pytest.approx(core_s)
    assert shift_s(found, num_ranks, 64) == pytest.approx(one_s, rel=1e-3)
    waited = Probe("shift", 64, 4, (31 * one_s,))  # a burst that also waited for something else
    found = calibrate_host(replace(measurements, probes=(*measurements.probes, waited)), 2)
    assert shift_s(found, num_ranks, 64) == pytest.approx(one_s, rel=1e-3)


def test_latency_that_passes_while_cores_are_at_work_comes_out() -> None:
    """Two ranks share a core, so that one's message travels while the other's is at its end."""
    host = Host(cores=1, nics=Nics(latency_s=80e-6, bandwidth_bytes_per_s=GBIT), link=Link(bandwidth_bytes_per_s=1e9))
    true = Cluster("true", Spec(host=host, ranks_per_host=2, processor=TRUE))
    found = calibrate_hosts(probed(true, (0, 0, 1, 1)), 2)
    assert found.spec.host.cores == 1
    assert shift_s(found, 4, 64) == pytest.approx(shift_s(true, 4, 64), rel=1e-3)


def test_missing_probes_are_named() -> None:
    """Probes of elapsed times are missed too; a rank alone needs none."""
    all_probes = measured_on(Cluster("true", Spec(host=Host(cores=2), processor=TRUE)), 2).probes
    for missing in ("shift", "shift_cpu", "reduce_cpu"):
        probes = tuple(probe for probe in all_probes if probe.kind != missing)
        with pytest.raises(ValueError, match="^the measurements have too few shift, shift_cpu and reduce_cpu probes"):
            calibrate_host(Measurements(2, {}, probes), 2)
    assert calibrate_host(Measurements(1, {}, ()), 2).spec.host.cores == 2
    with pytest.raises(ValueError, match="no pings of every host: measure again with the benchmark's --probes"):
        calibrate_hosts(Measurements(2, {"hosts": [0, 1], "machines": [0, 0]}, all_probes), 2)
    with pytest.raises(ValueError, match="do not say which ranks share a host: measure again with the benchmark's"):
        calibrate_hosts(Measurements(2, {}), 2)


GBIT = 125e6
MESSAGE_SIZES = (64, 4096, 2**17, 2**21, 2**23)


def ping_s(cluster: Cluster, num_ranks: int, rank: int, size: int) -> float:
    """The simulated time of one message from `rank` to the next."""
    rows = [(rank, (rank + 1) % num_ranks, 0, False)]
    ping = Schedule.from_columns(Collective.ALL_REDUCE, "ping", num_ranks, 1, [tuple(zip(*rows, strict=True))])  # type: ignore[list-item]
    return predict_time(ping, cluster, size)


def probed(cluster: Cluster, hosts: tuple[int, ...], machines: tuple[int, ...] | None = None) -> Measurements:
    """Return the measurements that the benchmark's probes would make on `cluster`."""
    num_ranks = len(hosts)
    pings = [
        Probe(f"ping/{rank}", size, 1, (ping_s(cluster, num_ranks, rank, size),))
        for rank in range(num_ranks)
        for size in MESSAGE_SIZES
    ]
    measured = measured_on(cluster, num_ranks, MESSAGE_SIZES)
    provenance = {"hosts": list(hosts), "machines": list(machines or (0,) * num_ranks)}
    return replace(measured, provenance=provenance, probes=(*measured.probes, *pings))


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_namespaces_of_one_machine_share_its_cores(num_ranks: int) -> None:
    """A rank each: ports of a known rate and latency, and as many ranks again can be predicted."""
    true = Cluster("true", Spec(host=Host(cores=2, link=Link(300e-6, GBIT)), processor=TRUE))
    found = calibrate_hosts(probed(true, tuple(range(num_ranks))), 2)
    assert (found.spec.host.cores, found.spec.slow_links) == (2, ())
    assert found.spec.host.link.bandwidth_bytes_per_s == pytest.approx(GBIT, rel=0.02)
    assert found.spec.host.link.latency_s == pytest.approx(300e-6, rel=0.1)
    schedule = build(Collective.ALL_REDUCE, "ring", 2 * num_ranks)
    assert predict_time(schedule, found, 2**24) == pytest.approx(predict_time(schedule, true, 2**24), rel=0.02)


def test_a_slow_host_is_found() -> None:
    """By the rate of its links, which are named; written to a file and read again it is the same network."""
    slow = tuple(SlowLink(f"rank2.{way}", bandwidth_bytes_per_s=GBIT / 4) for way in ("out", "in"))
    true = Cluster("true", Spec(host=Host(cores=2, link=Link(300e-6, GBIT)), processor=TRUE, slow_links=slow))
    found = calibrate_hosts(probed(true, (0, 1, 2, 3)), 2)
    assert [each.link for each in found.spec.slow_links] == ["rank2.out", "rank2.in"]
    assert found.spec.slow_links[0].bandwidth_bytes_per_s == pytest.approx(GBIT / 4, rel=0.02)
    assert found.spec.host.link.bandwidth_bytes_per_s == pytest.approx(GBIT, rel=0.02)
    again = read_network(network_text(found), "again.toml")
    assert [each.link for each in again.spec.slow_links] == ["rank2.out", "rank2.in"]


def test_hosts_of_several_ranks_share_their_nic() -> None:
    """The NIC's rate, half of the latency at each end, and the link within a host."""
    nics = Nics(100e-6, GBIT)
    spec = Spec(host=Host(link=Link(0.0, 2e9), nics=nics), ranks_per_host=2, processor=TRUE)
    found = calibrate_hosts(probed(Cluster("true", spec), (0, 0, 1, 1), (0, 0, 1, 1)), 2).spec
    assert found.ranks_per_host == 2
    assert found.host.nics.bandwidth_bytes_per_s == pytest.approx(GBIT, rel=0.02)
    assert found.host.nics.latency_s == pytest.approx(100e-6, rel=0.1)
    assert found.host.link.bandwidth_bytes_per_s == pytest.approx(2e9, rel=0.1)


@pytest.mark.parametrize(("num_cores", "of_each"), [(2, 1), (4, 2), (3, None), (1, None)])
def test_hosts_of_one_machine_share_its_cores_equally(num_cores: int, of_each: int | None) -> None:
    """Where they can; and hosts that are machines have cores enough."""
    true = Cluster("true", Spec(host=Host(nics=Nics(100e-6, GBIT)), ranks_per_host=2, processor=TRUE))
    found = calibrate_hosts(probed(true, (0, 0, 1, 1)), num_cores).spec
    assert (found.ranks_per_host, found.host.cores) == (2, of_each)
    apart = calibrate_hosts(probed(true, (0, 0, 1, 1), (0, 0, 1, 1)), num_cores).spec
    assert apart.host.cores is None


RESTED_SIZES = (64, 2**17, 2**19, 2**21)


def rested(cluster: Cluster, hosts: tuple[int, ...], asleep_s: float = 2e-4) -> Measurements:
    """Return `probed`, and shifts after a pause, in which the ranks fall asleep."""
    measured = probed(cluster, hosts)
    times_s = {size: asleep_s + shift_s(cluster, len(hosts), size, rested=True) for size in RESTED_SIZES}
    again = [Probe("shift", 2**19, 1, (shift_s(cluster, len(hosts), 2**19),))]
    probes = [Probe("shift/rested", size, 1, (time_s,)) for size, time_s in times_s.items()]
    return replace(measured, probes=(*measured.probes, *again, *probes))


@pytest.mark.parametrize(("num_ranks", "burst"), [(2, 0), (2, 2**16), (3, 2**17), (2, 700_000)])
def test_what_links_save_up_is_found(num_ranks: int, burst: int) -> None:
    """By shifts after a pause, also a burst longer than most of their messages; without a burst nothing."""
    true = Cluster("true", Spec(host=Host(cores=2, link=Link(3e-5, GBIT, burst_bytes=burst)), processor=TRUE))
    found = calibrate_hosts(rested(true, tuple(range(num_ranks))), 2)
    assert found.spec.host.link.burst_bytes == pytest.approx(burst, rel=0.02)
    again = read_network(network_text(found), "again.toml")
    assert again.spec.host.link.burst_bytes == found.spec.host.link.burst_bytes


def test_what_saves_up() -> None:
    """NICs of several ranks, and not the port within the host; nor links without a rate, however fast a message is.

    There cores or memory limit long messages, and a pause changes nothing.
    """
    spec = Spec(host=Host(nics=Nics(1e-5, GBIT, burst_bytes=2**17)), ranks_per_host=2, processor=TRUE)
    found = calibrate_hosts(rested(Cluster("true", spec), (0, 0, 1, 1)), 4).spec.host
    assert (found.nics.burst_bytes, found.link.burst_bytes) == (pytest.approx(2**17, rel=0.02), 0)
    measurements = rested(Cluster("true", Spec(host=Host(cores=2), processor=TRUE)), (0, 1))
    quick = Probe("shift", 2**17, 1, (9e-5,)), Probe("shift/rested", 2**17, 1, (3e-4,))
    others = tuple(p for p in measurements.probes if p.size_bytes != 2**17 or p.kind not in ("shift", "shift/rested"))
    found = calibrate_hosts(replace(measurements, probes=(*others, *quick)), 2).spec.host
    assert found.link.burst_bytes == 0


UNIFORM = Network(latency_s=30e-6, bandwidth_bytes_per_s=2e9, reduce_bytes_per_s=8e9, gap_s=12e-6)


def probes_of(network: Network, noise: tuple[float, ...] = (1.0,)) -> list[Probe]:
    """Return the probes of `network`, each measured several times with the factors of `noise`."""
    alpha = network.latency_s + network.gap_s
    times = [("shift", size, 1, alpha + size / network.bandwidth_bytes_per_s) for size in (64, 4096, 2**17, 2**20)]
    times += [("shift", 64, 4, alpha + 64 / network.bandwidth_bytes_per_s + 3 * network.gap_s)]
    times += [("reduce", size, 1, size / network.reduce_bytes_per_s) for size in (4096, 2**20)]
    return [Probe(kind, size, k, tuple(time * factor for factor in noise)) for kind, size, k, time in times]


def measurements_of(probes: list[Probe], num_ranks: int = 4) -> Measurements:
    """The measurements that hold `probes`."""
    return Measurements(num_ranks, {"machine": "made up"}, tuple(probes))


@pytest.mark.parametrize("noise", [(1.0,), (0.9, 1.0, 1.1, 1.0, 30.0)], ids=["exact", "with outliers"])
def test_calibration_finds_a_uniform_network(noise: tuple[float, ...]) -> None:
    """All four parameters come back, also when one time in five is far off."""
    network = calibrate_uniform(measurements_of(probes_of(UNIFORM, noise)))
    assert network.latency_s == pytest.approx(UNIFORM.latency_s, rel=1e-3)
    assert network.gap_s == pytest.approx(UNIFORM.gap_s, rel=1e-3)
    assert network.bandwidth_bytes_per_s == pytest.approx(UNIFORM.bandwidth_bytes_per_s, rel=1e-3)
    assert network.reduce_bytes_per_s == pytest.approx(UNIFORM.reduce_bytes_per_s, rel=1e-3)


def test_times_that_do_not_grow_give_no_bandwidth() -> None:
    """Where noise hides the size, the bandwidth is infinite and the latency the median; never a negative rate."""
    flat = [Probe("shift", size, 1, (time,)) for size, time in ((64, 3e-3), (4096, 2e-3), (2**20, 1e-3))]
    burst = [Probe("shift", 64, 4, (1e-3,)), Probe("reduce", 64, 1, (1e-6,)), Probe("reduce", 4096, 1, (2e-6,))]
    network = calibrate_uniform(measurements_of(flat + burst))
    assert (network.bandwidth_bytes_per_s, network.latency_s, network.gap_s) == (math.inf, 2e-3, 0.0)


def test_a_single_rank_has_a_free_network() -> None:
    """It sends nothing."""
    assert calibrate_uniform(measurements_of([], num_ranks=1)).bandwidth_bytes_per_s == math.inf


@pytest.mark.parametrize("kind", ["shift", "reduce"])
def test_missing_probes_of_a_uniform_network_are_named(kind: str) -> None:
    """The message says which, how many are needed, and what to do."""
    probes = [probe for probe in probes_of(UNIFORM) if probe.kind != kind]
    with pytest.raises(ValueError, match=f"too few {kind} probes.* sizes are needed; run the probe again"):
        calibrate_uniform(measurements_of(probes))
