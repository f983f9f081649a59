"""How a schedule goes through shared memory: in portions, of which each fits what a rank can publish at a time."""

from functools import lru_cache
from typing import NamedTuple

from ringsim.network import Ints, MemoryRate, SharedMemoryNetwork, Topology, require_sound
from ringsim.schedule import MemoryPasses, Schedule, memory_passes
from ringsim.simulation.engines.by_event import CopyCounts, run_events
from ringsim.simulation.timeline import OnProgress, Timeline, ignore_progress

_SCHEDULES_KEPT = 64


class Portions(NamedTuple):
    """`number` times an equal part of every chunk; chunk_bytes: (num_chunks,), those of the longest part."""

    number: int
    chunk_bytes: Ints
    topology: Topology
    copies: CopyCounts


def time_portions(
    schedule: Schedule,
    network: SharedMemoryNetwork,
    chunk_bytes: Ints,
    on_progress: OnProgress = ignore_progress,
    *,
    in_order: bool = False,
) -> float:
    """Seconds until the last rank has finished the last portion. chunk_bytes: (num_chunks,), of the whole tensor."""
    portions = _portions(schedule, network, chunk_bytes)
    return portions.number * _run(schedule, portions, on_progress, in_order).time_s


def only_portion(
    schedule: Schedule,
    network: SharedMemoryNetwork,
    chunk_bytes: Ints,
    on_progress: OnProgress = ignore_progress,
    *,
    in_order: bool = False,
) -> Timeline:
    """Every transfer with its times. Raises ValueError if there are several portions."""
    portions = _portions(schedule, network, chunk_bytes)
    if portions.number > 1:
        raise ValueError(
            f"{schedule}: goes through shared memory in {portions.number} portions, of which there is no timeline; "
            "simulate a smaller tensor"
        )
    return _run(schedule, portions, on_progress, in_order)


def _run(schedule: Schedule, portions: Portions, on_progress: OnProgress, in_order: bool) -> Timeline:
    _, sizes, topology, copies = portions
    return run_events(schedule, topology, sizes, on_progress, in_order=in_order, passes=copies)


def _portions(schedule: Schedule, network: SharedMemoryNetwork, chunk_bytes: Ints) -> Portions:
    passes = _passes(schedule)
    longest, most_published = int(chunk_bytes.max(initial=0)), max(passes.most_published, 1)
    number = max(1, -(-longest // max(network.costs.slot_bytes // most_published, 1)))
    sizes = -(-chunk_bytes // number)
    rate = network.rate(most_published * int(sizes.max(initial=0)))
    topology = network.topology_at(schedule.num_ranks, rate)
    require_sound(topology)
    return Portions(number, sizes, topology, _copy_counts(passes, rate))


def _copy_counts(passes: MemoryPasses, rate: MemoryRate) -> CopyCounts:
    """To form a sum elsewhere takes as much longer than to add in place as some fraction of a copy."""
    longer_s = max(1 / rate.reduce_into_bytes_per_s - 1 / rate.reduce_bytes_per_s, 0.0)
    fraction = longer_s * rate.copy_bytes_per_s if longer_s else 0.0
    return CopyCounts(passes.published, passes.taken + fraction * passes.apart)


@lru_cache(maxsize=_SCHEDULES_KEPT)
def _passes(schedule: Schedule) -> MemoryPasses:
    """Those of one schedule, which are asked for again for each size and network."""
    return memory_passes(schedule)
