"""How a schedule goes through shared memory: in portions, of which each fits what a rank can publish at a time."""

from functools import lru_cache
from typing import NamedTuple

from ringsim.network import Ints, MemoryRate, SharedMemoryNetwork, Topology, require_sound
from ringsim.schedule import MemoryPasses, Schedule, memory_passes
from ringsim.simulation.engines.event_engine import CopyCounts, run_events
from ringsim.simulation.timeline import OnProgress, Timeline

_SCHEDULES_KEPT = 64


class Portions(NamedTuple):
    """`number` times the same schedule, each time with an equal part of every chunk.

    chunk_bytes: (num_chunks,), of the longest part.
    """

    schedule: Schedule
    number: int
    chunk_bytes: Ints
    topology: Topology
    copies: CopyCounts

    def run_one(self, on_progress: OnProgress, *, in_order: bool) -> Timeline:
        """Every transfer of a portion with its times."""
        return run_events(
            self.schedule, self.topology, self.chunk_bytes, on_progress, in_order=in_order, copies=self.copies
        )

    def require_one(self) -> None:
        """Raise ValueError if there are several."""
        if self.number > 1:
            raise ValueError(
                f"{self.schedule}: goes through shared memory in {self.number} portions, of which there is no "
                "timeline; simulate a smaller tensor"
            )


def portions_of(schedule: Schedule, network: SharedMemoryNetwork, chunk_bytes: Ints) -> Portions:
    """Return the portions of a tensor. chunk_bytes: (num_chunks,)."""
    passes = _passes(schedule)
    longest, most_published = int(chunk_bytes.max(initial=0)), max(passes.most_published, 1)
    number = max(1, -(-longest // max(network.costs.slot_bytes // most_published, 1)))
    sizes = -(-chunk_bytes // number)
    rate = network.rate(most_published * int(sizes.max(initial=0)))
    topology = network.topology_at(schedule.num_ranks, rate)
    require_sound(topology)
    return Portions(schedule, number, sizes, topology, _copy_counts(passes, rate))


def _copy_counts(passes: MemoryPasses, rate: MemoryRate) -> CopyCounts:
    """To form a sum elsewhere takes as much longer than to add in place as some fraction of a copy."""
    longer_s = max(1 / rate.reduce_into_bytes_per_s - 1 / rate.reduce_bytes_per_s, 0.0)
    fraction = longer_s * rate.copy_bytes_per_s if longer_s else 0.0
    return CopyCounts(passes.published, passes.taken + fraction * passes.apart)


@lru_cache(maxsize=_SCHEDULES_KEPT)
def _passes(schedule: Schedule) -> MemoryPasses:
    """Return the passes of one schedule, which are asked for again for each size and network."""
    return memory_passes(schedule)
