"""`shared_memory_of`: from probes to what messages cost between ranks of a host that share memory."""

from dataclasses import replace

from ringsim.calibration.probe_times import cold_call_s, shift_s
from ringsim.files import parsed, values
from ringsim.measurements import ROUNDS_PER_RUN, SLOT_BYTES, TOUCHED_BYTES, Measurements
from ringsim.network import Cluster, MemoryRate, SharedMemory, SharedMemoryNetwork

_MOST = 1e12  # bytes a second, where the probes show no cost


def shared_memory_of(measurements: Measurements, cluster: Cluster) -> SharedMemory | None:
    """Return what the probes of shared memory say of the host of `cluster`; None if there are none.

    While all ranks send their own chunks, which nobody passes on, nobody waits: the smallest take the overheads, the
    others twice the time of a copy beside ("shm/copy"), or that of a copy and of an addition ("shm/add"). While they
    pass on sums ("shm/shift"), each takes an addition whose sum is formed elsewhere, and the first a copy. Ranks that
    are more than cores take turns. Each is probed with tensors from all over the memory, and with the same ones each
    time ("/cached"). What the smallest message takes longer if it is passed on is latency, and what it takes longer by
    its own call ("shm/call") the call's.
    """
    copies, shifts, calls = (measurements.probes_of(f"shm/{kind}") for kind in ("copy", "shift", "call"))
    if not (copies and shifts):
        return None
    for name in (SLOT_BYTES, TOUCHED_BYTES):
        parsed(values.size, measurements.provenance.get(name), f"provenance.{name}")
    cores = cluster.spec.host.cores or measurements.num_ranks
    waiting = max(1.0, measurements.num_ranks / cores)
    overhead_s = copies[0].median_s / waiting
    costs = SharedMemory(
        slot_bytes=measurements.provenance[SLOT_BYTES],
        touched_bytes=measurements.provenance[TOUCHED_BYTES],
        send_overhead_s=overhead_s / 2,
        receive_overhead_s=overhead_s / 2,
        call_s=max(calls[0].median_s - shifts[0].median_s, 0.0) if calls else 0.0,
        cold_call_s=cold_call_s(measurements, "shm/call"),
        rates=_rates(measurements, waiting),
    )
    smallest, network = shifts[0], _with_shared_memory(cluster, costs)
    missing_s = smallest.median_s - shift_s(network, measurements.num_ranks, smallest.size_bytes)
    return replace(costs, latency_s=max(missing_s, 0.0))


def _rates(measurements: Measurements, waiting: float) -> tuple[MemoryRate, ...]:
    """Return the rates of each size but the smallest, which takes the overheads only."""
    sizes = [probe.size_bytes for probe in measurements.probes_of("shm/copy")[1:]]
    cold = _bytes_per_s(measurements, "", waiting)
    cached = _bytes_per_s(measurements, "/cached", waiting) or cold
    rows = zip(sizes, cold, cached, strict=True)
    return tuple(MemoryRate(ROUNDS_PER_RUN * size, *row, *other) for size, row, other in rows) or (MemoryRate(1),)


def _bytes_per_s(measurements: Measurements, suffix: str, waiting: float) -> list[tuple[float, ...]]:
    """Return for each size the bytes that a core copies, adds, and adds elsewhere, in a second.

    Raises ValueError if probes of a size are missing.
    """
    copies, additions, shifts = (measurements.probes_of(f"shm/{kind}{suffix}") for kind in ("copy", "add", "shift"))
    for kind, probes in (("add", additions), ("shift", shifts)):
        if [probe.size_bytes for probe in copies] != [probe.size_bytes for probe in probes]:
            raise ValueError(f"the measurements have other sizes of shm/copy{suffix} than of shm/{kind}{suffix} probes")
    rates = []
    for copy, addition, shift in zip(copies[1:], additions[1:], shifts[1:], strict=True):
        copying_s = max((copy.median_s - copies[0].median_s) / 2, 0.0)
        adding_s = addition.median_s - additions[0].median_s - copying_s
        # A run of a shift also copies its first chunk, and of the sums that are sent on those that belong to the rank.
        copies_each = (1 + (ROUNDS_PER_RUN - 1) / measurements.num_ranks) / ROUNDS_PER_RUN
        adding_apart_s = shift.median_s - shifts[0].median_s - copies_each * copying_s
        times = (copying_s, adding_s, adding_apart_s)
        rates.append(tuple(copy.size_bytes * waiting / seconds if seconds > 0 else _MOST for seconds in times))
    return rates


def _with_shared_memory(cluster: Cluster, costs: SharedMemory) -> SharedMemoryNetwork:
    """Return the host of `cluster`, whose ranks share memory at these costs."""
    host = replace(cluster.spec.host, shared_memory=costs)
    return SharedMemoryNetwork(cluster.with_spec(host=host))
