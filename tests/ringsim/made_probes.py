"""Made-up probes of a machine whose network is known."""

from msgspec.structs import replace

from ringsim.calibration.probe_times import shift_s
from ringsim.measurements.measurements import CollectiveTimes, Measurements, Probe
from ringsim.network import Host, Link, Network, Nics, Processor, SlowLink, Spec
from ringsim.registry import build
from ringsim.schedule.collective import Collective
from ringsim.simulation import IN_ORDER, predict_time

PROCESSOR = Processor(20e-6, 20e-6, reduce_bytes_per_s=10e9, copy_bytes_per_s=4e9)
SIZES = (64, 4096, 2**17, 2**21, 2**23)
BLOCKS = (0.99, 1.0, 1.01, 0.985, 1.015)  # how far the blocks of a probe lie apart
COLLECTIVE_SIZES = (2**10, 2**16, 2**20, 2**24)
MACHINE = {"machine": "made up", "cores": 2, "date": "2026-01-02T03:04:05+00:00", "torch": "2.13.0"}


def one_host(num_cores: int = 2, latency_s: float = 100e-6, processor: Processor = PROCESSOR) -> Network:
    """Ranks that share the cores of a host."""
    return Network("true", Spec(host=Host(cores=num_cores, link=Link(latency_s=latency_s)), processor=processor))


def hosts(bandwidth: float = 1.25e8, latency_s: float = 20e-6, slow: tuple[SlowLink, ...] = ()) -> Network:
    """Hosts of one rank each, with NICs of that bandwidth."""
    host = Host(nics=Nics(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth))
    return Network("true", Spec(host=host, ranks_per_host=1, processor=PROCESSOR, slow_links=slow))


def made_measurements(
    num_ranks: int = 2, num_cores: int = 2, cluster: Network | None = None, slower: float = 1.0
) -> Measurements:
    """Probes, and the times of all_reduce by a ring, which took `slower` times what the network says."""
    cluster = cluster or one_host(num_cores)
    across = cluster.spec.ranks_per_host == 1
    numbers = list(range(num_ranks)) if across else [0] * num_ranks
    places = {"cores": num_cores, "hosts": numbers, "machines": numbers}
    probes = tuple(_probes(cluster, num_ranks, across))
    times = tuple(_times(cluster, num_ranks, size, slower) for size in COLLECTIVE_SIZES)
    return Measurements(num_ranks, {**MACHINE, **places}, probes, times)


def _probes(cluster: Network, num_ranks: int, across: bool) -> list[Probe]:
    processor = cluster.spec.processor
    overheads = processor.send_overhead_s + processor.receive_overhead_s
    times = []
    for size in SIZES:
        times += [
            ("shift", size, 1, shift_s(cluster, num_ranks, size)),
            ("shift_cpu", size, 1, overheads + 2 * size / processor.copy_bytes_per_s),
            ("reduce_cpu", size, 1, size / processor.reduce_bytes_per_s),
        ]
        if across:
            times += [(f"ping/{rank}", size, 1, _ping_s(cluster, rank, num_ranks, size)) for rank in range(num_ranks)]
    return [Probe(kind, size, k, tuple(time_s * factor for factor in BLOCKS)) for kind, size, k, time_s in times]


def _ping_s(cluster: Network, rank: int, num_ranks: int, size_bytes: int) -> float:
    """One message to the right neighbour, over links that are slow only where the two ends are."""
    spec = cluster.spec
    rates = [spec.host.nics.bandwidth_bytes_per_s]
    names = {f"host{rank}.nic0.out", f"host{(rank + 1) % num_ranks}.nic0.in"}
    rates += [slow.bandwidth_bytes_per_s or rates[0] / slow.slowdown for slow in spec.slow_links if slow.link in names]
    return 2 * spec.host.nics.latency_s + 2 * spec.processor.send_overhead_s + size_bytes / min(rates)


def _times(cluster: Network, num_ranks: int, size_bytes: int, slower: float) -> CollectiveTimes:
    schedule = build(Collective.ALL_REDUCE, "ring", num_ranks, size_bytes)
    median_s = predict_time(schedule, cluster, size_bytes, runtime=IN_ORDER) * slower
    times_s = tuple(median_s * factor for factor in BLOCKS)
    zeros = (0,) * len(BLOCKS)
    return CollectiveTimes(
        Collective.ALL_REDUCE, "ring", size_bytes, "float32", "sum", num_ranks, True, 0, 1,
        times_s, tuple(map(float, zeros)), zeros, (median_s,) * num_ranks,
    )  # fmt: skip


def without_probes(measurements: Measurements) -> Measurements:
    """The same, where only collectives were timed."""
    return replace(measurements, probes=())
