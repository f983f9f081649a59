"""Fits of probes: a uniform network, one host whose ranks share cores and memory, or several hosts."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ringsim.calibration.probe_times import fit_line, longer_s, rate, shift_s
from ringsim.files import parsed, values
from ringsim.libraries import GLOO, OURS, Library
from ringsim.measurements import ROUNDS_PER_RUN, SLOT_BYTES, TOUCHED_BYTES, Measurements, Probe, RankHosts
from ringsim.network import Host, Link, MemoryRate, Network, Nics, Processor, SharedMemory, SlowLink, Spec
from ringsim.schedule import Collective
from ringsim.simulation import predict_time

EXPLAINED = 0.98  # of a time; the rest is noise
_NEAR, _MOST_ROUNDS = 1e-4, 50  # of a time to be met, and how often the latency is raised for that


def calibrate_uniform(measurements: Measurements) -> Network:
    """Return the uniform network that reproduces the probes.

    A message in a shift takes latency + overhead + m/B, and an addition m/R; both are fitted to the medians by least
    squares of relative errors. Each further message in flight costs one overhead more.

    With one rank the network is free. Raises ValueError for missing probes.
    """
    if measurements.num_ranks == 1:
        return Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=math.inf)
    single = _need(measurements.probes_of("shift", in_flight=1), "shift probes with one message in flight", 2)
    bursts = _need(
        [p for p in measurements.probes_of("shift") if p.in_flight > 1], "shift probes with several in flight", 1
    )
    reductions = _need(measurements.probes_of("reduce"), "reduce probes", 1)
    alpha_s, s_per_byte = fit_line(single)
    same_size = [probe for probe in single if probe.size_bytes == bursts[0].size_bytes]
    (smallest,) = _need(same_size, f"shift probes of one message of {bursts[0].size_bytes} bytes", 1)[:1]
    overhead_s = min(max(_per_message_s(smallest, bursts[0]), 0.0), alpha_s)
    _, reduce_s_per_byte = fit_line(reductions)
    return Network.uniform(
        latency_s=alpha_s - overhead_s,
        bandwidth_bytes_per_s=rate(s_per_byte),
        reduce_bytes_per_s=rate(reduce_s_per_byte),
        gap_s=overhead_s,
    )


def _per_message_s(one: Probe, several: Probe) -> float:
    return (several.median_s - one.median_s) / (several.in_flight - 1)


def _need(probes: list[Probe], things: str, least: int) -> list[Probe]:
    if len({probe.size_bytes for probe in probes}) < least:
        raise ValueError(f"the measurements have too few {things}: {least} sizes are needed; run the probe again")
    return probes


def calibrate_host(measurements: Measurements, num_cores: int) -> Network:
    """Return the host that reproduces the elapsed times and the CPU times of the probes.

    A message occupies cores for `a + b m`, half at each end: a is overhead, b copying. An addition takes m/R. These are
    fitted to CPU times, which hardly depend on other load; a is at least `_core_s`. The remaining elapsed time of the
    smallest message is latency, that of the largest is due to memory.

    Raises ValueError for missing probes.
    """
    processor = processor_of(measurements, num_cores) if measurements.num_ranks > 1 else Processor()
    cluster = Network("host", Spec(Host(cores=num_cores), processor=processor), "one host, calibrated", "measured")
    if measurements.num_ranks == 1:
        return cluster
    elapsed = measurements.probes_of("shift", in_flight=1)
    cluster = _with_latency(cluster, measurements.num_ranks, elapsed[0])
    cluster = _with_memory_bandwidth(cluster, measurements.num_ranks, elapsed)
    shared_memory = shared_memory_of(measurements, cluster)
    cluster = cluster.with_spec(host=replace(cluster.spec.host, shared_memory=shared_memory))
    return with_late_calls(cluster, measurements)


def processor_of(measurements: Measurements, num_cores: int) -> Processor:
    """Return the CPU costs of messages, additions and calls, of ranks that share `num_cores`.

    Raises ValueError for missing probes.
    """
    messages, elapsed = (measurements.probes_of("shift", in_flight=1, clock=clock) for clock in ("cpu", ""))
    additions = measurements.probes_of("reduce", clock="cpu")
    if len(messages) < 2 or not additions or not elapsed:
        raise ValueError(
            "the measurements have too few shift, shift_cpu and reduce_cpu probes: measure again with the benchmark's "
            "--probes, as ringsim measure does"
        )
    per_message_s, per_byte_s = fit_line(messages)
    per_message_s = max(per_message_s, _core_s(measurements, num_cores))
    _, reduce_s_per_byte = fit_line(additions)
    fresh = measurements.probes_of("fresh", clock="cpu")
    calls, torch_calls = measurements.probes_of("call"), measurements.probes_of("call", subject="dist")
    in_thread_s = (longer_s(measurements, "async", "cold", transport=transport) for transport in ("shm", ""))
    return Processor(
        send_overhead_s=per_message_s / 2,
        receive_overhead_s=per_message_s / 2,
        reduce_bytes_per_s=rate(reduce_s_per_byte),
        copy_bytes_per_s=rate(per_byte_s / 2),
        first_touch_bytes_per_s=fresh[-1].size_bytes / fresh[-1].median_s if fresh else math.inf,
        call_s=max(calls[0].median_s - elapsed[0].median_s, 0.0) if calls else 0.0,
        torch_call_s=torch_calls[0].median_s if torch_calls else 0.0,
        cold_call_s=longer_s(measurements, "cold", "warm") or 0.0,
        cold_torch_call_s=longer_s(measurements, "cold", "warm", subject="dist") or 0.0,
        async_call_s=next((time_s for time_s in in_thread_s if time_s is not None), 0.0),
    )


def _core_s(measurements: Measurements, num_cores: int) -> float:
    """Return the time for which a further message in flight keeps a core from others; 0 unless ranks outnumber cores.

    It is more than the CPU time of its threads, since a core idles until a thread woken by another core runs.
    """
    one, *_ = measurements.probes_of("shift", in_flight=1)
    several = [p for p in measurements.probes_of("shift") if p.in_flight > 1 and p.size_bytes == one.size_bytes]
    if measurements.num_ranks <= num_cores or not several:
        return 0.0
    return min(_per_message_s(one, several[0]), one.median_s) * num_cores / measurements.num_ranks


def _with_memory_bandwidth(cluster: Network, num_ranks: int, elapsed: list[Probe]) -> Network:
    """Return `cluster` with the memory bandwidth that explains the longest message, if it is too fast."""
    smallest, largest, host = elapsed[0], elapsed[-1], cluster.spec.host
    if shift_s(cluster, num_ranks, largest.size_bytes) >= EXPLAINED * largest.median_s:
        return cluster
    moved = host.copies * num_ranks * (largest.size_bytes - smallest.size_bytes)
    memory = moved / (largest.median_s - smallest.median_s)
    return cluster.with_spec(host=replace(host, memory_bytes_per_s=memory))


ALIKE = 1.25  # ratio up to which rates of links count as the same
LONG = 2**17  # bytes; shorter messages may fit into a link's token bucket and pass faster


def calibrate_hosts(measurements: Measurements, num_cores: int, *, links_alike: bool = False) -> Network:
    """Return the hosts that reproduce the probes.

    links_alike: assume equal links between hosts and free links within them, for measurements without pings.

    Latency and the costs on the cores are as in `calibrate_host`. Bandwidth is the rate of long messages in a shift,
    which uses both directions at once; if pings show different rates, it is that of the slowest link, and other links
    are faster in proportion. Namespaces or containers of one machine share its cores if they have one rank each;
    otherwise they get equal parts, if possible.

    Raises ValueError for missing probes, and for hosts with different numbers of ranks.
    """
    rank_hosts = RankHosts.from_measurements(measurements)
    if rank_hosts is None:
        remedy = "measure again with the benchmark's --probes"
        raise ValueError(f"the measurements do not say which ranks share a host: {remedy}")
    per_host = rank_hosts.ranks_per_host
    elapsed = measurements.probes_of("shift", in_flight=1)
    rates = [1.0] * rank_hosts.num_hosts if links_alike else _rates(measurements, rank_hosts)
    slowest = min(rates)
    fastest = _slope(elapsed, LONG) * max(rates) / slowest
    shared_cores = per_host == 1 and rank_hosts.one_clock
    if shared_cores:
        host = Host(cores=num_cores, link=Link(bandwidth_bytes_per_s=fastest))
        names = [f"rank{number}" for number in range(len(rates))]
    else:
        cores, left = divmod(num_cores, rank_hosts.num_hosts)
        of_one_machine = rank_hosts.one_clock and not left
        host = Host(
            cores=cores if of_one_machine else None,
            nics=Nics(bandwidth_bytes_per_s=fastest),
            link=_within(measurements, rank_hosts),
        )
        names = [f"host{number}.nic0" for number in range(len(rates))]
    slow = [
        SlowLink(f"{name}.{way}", bandwidth_bytes_per_s=fastest * rate / max(rates))
        for name, rate in zip(names, rates, strict=True)
        if rate * ALIKE < max(rates)
        for way in ("out", "in")
    ]
    spec = Spec(
        host=host,
        ranks_per_host=None if shared_cores else per_host,
        processor=processor_of(measurements, num_cores if rank_hosts.one_clock else measurements.num_ranks),
        slow_links=tuple(slow),
    )
    cluster = Network("hosts", spec, "several hosts, calibrated", "measured")
    cluster = _with_burst(_with_latency(cluster, measurements.num_ranks, elapsed[0]), measurements)
    return with_late_calls(cluster, measurements)


def _rates(measurements: Measurements, rank_hosts: RankHosts) -> list[float]:
    """Return the bytes per second of each host's fastest ping; 1.0 for all if they differ little."""
    rates = [0.0] * rank_hosts.num_hosts
    for rank, host in enumerate(rank_hosts.hosts):
        other = rank_hosts.hosts[rank_hosts.right_of(rank)]
        pings = measurements.probes_of("ping", subject=str(rank))
        if host == other or not pings:
            continue
        rate = _slope(pings, LONG)
        for end in (host, other):
            rates[end] = max(rates[end], rate)
    if not all(rates):
        raise ValueError("the measurements have no pings of every host: measure again with the benchmark's --probes")
    return rates if max(rates) > ALIKE * min(rates) else [1.0] * len(rates)


def _within(measurements: Measurements, rank_hosts: RankHosts) -> Link:
    for rank in range(len(rank_hosts.hosts) - 1):
        pings = measurements.probes_of("ping", subject=str(rank))
        if pings and rank_hosts.hosts[rank] == rank_hosts.hosts[rank + 1]:
            return Link(bandwidth_bytes_per_s=_slope(pings))
    return Link()


def _slope(probes: Sequence[Probe], least: int = 0) -> float:
    """Return the bytes per second of messages of at least `least` bytes; of all without such messages."""
    probes = [probe for probe in probes if probe.size_bytes >= least] or probes
    if len({probe.size_bytes for probe in probes}) < 2:
        raise ValueError("the measurements have too few sizes of messages: at least two; measure larger ones")
    small, large = probes[0], probes[-1]
    return (large.size_bytes - small.size_bytes) / max(large.median_s - small.median_s, 1e-12)


def _with_latency(cluster: Network, num_ranks: int, smallest: Probe) -> Network:
    """Return `cluster` with the latency that explains the smallest shift.

    If ranks share cores, it exceeds the missing time, since part of it overlaps with other work.
    """
    latency_s = 0.0
    for _ in range(_MOST_ROUNDS):
        missing_s = smallest.median_s - shift_s(cluster, num_ranks, smallest.size_bytes)
        if missing_s <= _NEAR * smallest.median_s:
            break
        latency_s += missing_s
        at_each_end = 1 if cluster.spec.ranks_per_host is None else 2
        cluster = _with_link(cluster, latency_s=latency_s / at_each_end)
    return cluster


def _with_burst(cluster: Network, measurements: Measurements) -> Network:
    """Return `cluster` with the burst size that explains shifts after a pause, if a pause has an effect.

    The burst is the link's bytes in the time that the pause saves, less that of the smallest shift, since pausing ranks
    also fall asleep. The fit uses the shortest message of more than twice its burst: a longer one tells little of it.
    """
    probes = measurements.probes_of("shift", warmth="rested")
    busy_s = {probe.size_bytes: probe.median_s for probe in measurements.probes_of("shift", in_flight=1)}
    if len(probes) < 2 or not {probe.size_bytes for probe in probes} <= busy_s.keys():
        return cluster
    smallest, shortest, *_ = probes
    if ALIKE * (shortest.median_s - smallest.median_s) >= busy_s[shortest.size_bytes] - busy_s[smallest.size_bytes]:
        return cluster
    num_ranks, burst = measurements.num_ranks, 0.0
    start_s = shift_s(cluster, num_ranks, smallest.size_bytes, rested=True)
    for probe in probes[1:]:
        unsaved_s = shift_s(cluster, num_ranks, probe.size_bytes, rested=True) - start_s
        saved_s = unsaved_s - (probe.median_s - smallest.median_s)
        burst = probe.size_bytes * saved_s / unsaved_s
        if 2 * burst < probe.size_bytes:
            break
    return _with_link(cluster, burst_bytes=round(burst)) if burst >= 1 else cluster


def _with_link(cluster: Network, **changes: Any) -> Network:
    host = cluster.spec.host
    field = "link" if cluster.spec.ranks_per_host is None else "nics"
    return cluster.with_spec(host=replace(host, **{field: replace(getattr(host, field), **changes)}))


LATE = 2.0  # times the median


def with_late_calls(cluster: Network, measurements: Measurements) -> Network:
    """Return `cluster` with the share and the delay of late calls among those after a computation."""
    over_gloo, num_ranks = OURS.over("gloo"), measurements.num_ranks
    through_memory = measurements.probes_of("call", warmth="async", transport="shm")
    in_thread = through_memory or measurements.probes_of("call", warmth="async")
    of_torch = measurements.probes_of("call", warmth="cold", subject="dist")
    processor = replace(
        cluster.spec.processor,
        **_late(num_ranks, measurements.probes_of("call", warmth="cold"), cluster, over_gloo),
        **_late(num_ranks, of_torch, cluster, GLOO, prefix="torch_"),
        **_late(num_ranks, in_thread, cluster, OURS if through_memory else over_gloo, prefix="async_"),
    )
    host = cluster.spec.host
    if host.shared_memory is not None:
        calls = measurements.probes_of("call", warmth="cold", transport="shm")
        late = _late(num_ranks, calls, cluster, OURS)
        host = replace(host, shared_memory=replace(host.shared_memory, **late))
    return cluster.with_spec(host=host, processor=processor)


def _late(
    num_ranks: int, calls: Sequence[Probe], network: Network, library: Library, prefix: str = ""
) -> dict[str, Any]:
    """Return the share of the first probe's calls above LATE times their median, and their mean excess.

    The excess is limited so that simulated calls do not exceed the mean: if ranks outnumber cores, the probes of
    messages already contain waits.
    """
    late = [time_s for time_s in calls[0].times_s if time_s > LATE * calls[0].median_s] if calls else []
    if not late:
        return {}
    probe = calls[0]
    share = len(late) / len(probe.times_s)
    simulated_s = library.call_cost(network, is_async=prefix == "async_").after_s(math.inf)
    if library is GLOO:
        ring = library.schedule(Collective.ALL_REDUCE, num_ranks, probe.size_bytes)
        simulated_s += predict_time(ring, network, probe.size_bytes, runtime=library.runtime)
    else:
        simulated_s += shift_s(network, num_ranks, probe.size_bytes, library.runtime)
    lacking_s = statistics.fmean(probe.times_s) - simulated_s
    late_s = min(statistics.fmean(late) - probe.median_s, lacking_s / share)
    return {f"{prefix}late_share": share, f"{prefix}late_s": late_s} if late_s > 0 else {}


_NO_COST = 1e12  # bytes a second, where the probes show no cost


def shared_memory_of(measurements: Measurements, cluster: Network) -> SharedMemory | None:
    """Return the costs of shared memory; None without its probes.

    In "shm/copy" and "shm/add" no rank waits: the smallest chunks give the overheads, and larger ones take two copies,
    or a copy and an addition. In "shm/shift" a message takes an addition into another place, and the first a copy; its
    smallest message also takes the latency, and in "shm/call" the cost of a call. Ranks that outnumber cores take
    turns.
    """
    copies, shifts, calls = (measurements.probes_of(kind, transport="shm") for kind in ("copy", "shift", "call"))
    if not (copies and shifts):
        return None
    for name in (SLOT_BYTES, TOUCHED_BYTES):
        parsed(values.Size, measurements.provenance.get(name), f"provenance.{name}")
    cores = cluster.spec.host.cores or measurements.num_ranks
    waiting = max(1.0, measurements.num_ranks / cores)
    overhead_s = copies[0].median_s / waiting
    costs = SharedMemory(
        slot_bytes=measurements.provenance[SLOT_BYTES],
        touched_bytes=measurements.provenance[TOUCHED_BYTES],
        send_overhead_s=overhead_s / 2,
        receive_overhead_s=overhead_s / 2,
        call_s=max(calls[0].median_s - shifts[0].median_s, 0.0) if calls else 0.0,
        cold_call_s=longer_s(measurements, "cold", "warm", transport="shm") or 0.0,
        rates=_memory_rates(measurements, waiting),
    )
    network = cluster.with_spec(host=replace(cluster.spec.host, shared_memory=costs))
    missing_s = shifts[0].median_s - shift_s(network, measurements.num_ranks, shifts[0].size_bytes, OURS.runtime)
    return replace(costs, latency_s=max(missing_s, 0.0))


def _memory_rates(measurements: Measurements, waiting: float) -> tuple[MemoryRate, ...]:
    sizes = [probe.size_bytes for probe in measurements.probes_of("copy", transport="shm")[1:]]
    cold = _bytes_per_s(measurements, "", waiting)
    cached = _bytes_per_s(measurements, "cached", waiting) or cold
    rows = zip(sizes, cold, cached, strict=True)
    return tuple(MemoryRate(ROUNDS_PER_RUN * size, *row, *other) for size, row, other in rows) or (MemoryRate(1),)


def _bytes_per_s(measurements: Measurements, warmth: str, waiting: float) -> list[tuple[float, ...]]:
    """Return the bytes per second that a core copies, adds, and adds into another place, by size.

    Raises ValueError if probes of a size are missing.
    """
    copies, additions, shifts = (
        measurements.probes_of(pattern, transport="shm", warmth=warmth) for pattern in ("copy", "add", "shift")
    )
    suffix = warmth and f"/{warmth}"
    for kind, probes in (("add", additions), ("shift", shifts)):
        if [probe.size_bytes for probe in copies] != [probe.size_bytes for probe in probes]:
            raise ValueError(f"the measurements have other sizes of shm/copy{suffix} than of shm/{kind}{suffix} probes")
    rates = []
    for copy, addition, shift in zip(copies[1:], additions[1:], shifts[1:], strict=True):
        copying_s = max((copy.median_s - copies[0].median_s) / 2, 0.0)
        adding_s = addition.median_s - additions[0].median_s - copying_s
        # A run of a shift also copies its first chunk, and the forwarded sums of the rank's own chunks.
        copies_each = (1 + (ROUNDS_PER_RUN - 1) / measurements.num_ranks) / ROUNDS_PER_RUN
        adding_apart_s = shift.median_s - shifts[0].median_s - copies_each * copying_s
        times = (copying_s, adding_s, adding_apart_s)
        rates.append(tuple(copy.size_bytes * waiting / seconds if seconds > 0 else _NO_COST for seconds in times))
    return rates
