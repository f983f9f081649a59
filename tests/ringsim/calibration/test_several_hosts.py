"""From probes of ranks on several hosts to the hosts."""

from dataclasses import replace

import pytest

from ringsim import Schedule, predict_time
from ringsim.calibration.hosts import calibrate_hosts
from ringsim.measurements.measurements import Measurements, Probe
from ringsim.network.cluster import Cluster
from ringsim.network.file_reader import read_network
from ringsim.network.file_writer import network_text
from ringsim.network.spec import Host, Link, Nics, SlowLink, Spec
from ringsim.registry import build
from ringsim.schedule.collective import Collective
from tests.ringsim.calibration.test_one_host import TRUE, measured_on

GBIT = 125e6
SIZES = (64, 4096, 2**17, 2**21, 2**23)


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
        for size in SIZES
    ]
    measured = measured_on(cluster, num_ranks, SIZES)
    provenance = {"hosts": list(hosts), "machines": list(machines or (0,) * num_ranks)}
    return replace(measured, provenance=provenance, probes=(*measured.probes, *pings))


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
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


def test_missing_pings_are_named() -> None:
    """And where to get them."""
    true = Cluster("true", Spec(host=Host(cores=2, link=Link(300e-6, GBIT)), processor=TRUE))
    measurements = probed(true, (0, 1))
    without = replace(measurements, probes=tuple(p for p in measurements.probes if not p.kind.startswith("ping")))
    with pytest.raises(ValueError, match="no pings of every host: measure again with the benchmark's --probes"):
        calibrate_hosts(without, 2)


def test_measurements_must_say_where_the_ranks_were() -> None:
    """Measurements of old versions do not, and are refused."""
    with pytest.raises(ValueError, match="do not say which ranks share a host: measure again with the benchmark's"):
        calibrate_hosts(Measurements(2, {}), 2)
