"""`simulate`: the times of every transfer of a schedule on a network; `predict_time`: the end of the last one.

`fast_path` gives the times of `events` without listing all transfers. A tensor too large for shared memory goes in
portions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ringsim.limits import require_memory
from ringsim.network import Ints, Network, SharedMemory, Topology
from ringsim.schedule import MemoryPasses, Schedule, dependencies, memory_passes
from ringsim.simulation.events import run_events
from ringsim.simulation.fast_path import fast_path, private_rounds
from ringsim.simulation.representatives import may_have_representatives
from ringsim.simulation.routes import with_in_network_reduction
from ringsim.simulation.timeline import CopyCounts, OnProgress, Timeline, ignore_progress

BYTES_RECORDED = 100  # of memory for each transfer of a timeline while it is made, at most


@dataclass(frozen=True, slots=True)
class Runtime:
    """How ranks wait, and the transport of their messages.

    in_order: whether a rank waits for one thing at a time, as on Gloo (see `dependencies`).
    num_workers: the number of collectives on which a rank works at once.
    shares_memory: whether ranks of a host read from each other's memory, if the network describes it. touched_bytes:
    see `SharedMemoryTopology`.
    in_place: whether a reduce_scatter's output is a part of its input.
    is_lent: whether tensors lie in memory that the ranks of a host share, as those of `collectives.empty`.

        >>> from ringsim import Runtime, load_network, predict_time, ring_all_reduce
        >>> round(predict_time(ring_all_reduce(4), load_network("gbe"), 2**20, runtime=Runtime(in_order=True)), 6)
        0.012709
    """

    in_order: bool = False
    num_workers: int = 1
    shares_memory: bool = False
    touched_bytes: int | None = None
    in_place: bool = False
    is_lent: bool = False

    def shared_memory(self, network: Network) -> SharedMemory | None:
        return network.shared_memory if self.shares_memory else None

    def topology(self, network: Network, num_ranks: int) -> Topology:
        """Return the topology of the messages; of shared memory if all ranks publish as much as they can."""
        if self.shared_memory(network) is None:
            return network.topology(num_ranks)
        return network.memory_topology(num_ranks, touched_bytes=self.touched_bytes)


RULE = Runtime()
IN_ORDER = Runtime(in_order=True)


def simulate(
    schedule: Schedule,
    network: Network,
    size_bytes: int,
    *,
    element_bytes: int = 1,
    runtime: Runtime = RULE,
    on_progress: OnProgress = ignore_progress,
) -> Timeline:
    """Return every transfer of a schedule with its simulated times, all ranks starting at 0.

    size_bytes: of the whole tensor (for reduce_scatter the input, for all_gather the output).
    on_progress: called with the number of transfers simulated since its last call.

    Raises ValueError for a size that is negative or not a multiple of `element_bytes`, for too little memory, and for a
    tensor that goes through shared memory in several portions.

        >>> from ringsim import load_network, ring_all_reduce, simulate
        >>> timeline = simulate(ring_all_reduce(4), load_network("gbe"), 2**20)
        >>> timeline
        Timeline(4 ranks, 24 transfers, 12.71 ms)
        >>> timeline.applied_order(1)[:2]
        [(0, 0, 3), (1, 0, 2)]
    """
    sizes = schedule.chunk_bytes(size_bytes, element_bytes)
    _require_room(schedule)
    if runtime.shared_memory(network):
        number, run_one = _portions(schedule, network, sizes, runtime)
        if number > 1:
            raise ValueError(
                f"{schedule}: goes through shared memory in {number} portions, of which there is no timeline; "
                "simulate a smaller tensor"
            )
        return run_one(on_progress)
    topology = with_in_network_reduction([schedule], priced_topology(network, schedule.num_ranks))
    if rounds := private_rounds(schedule, topology, sizes):
        return rounds.timeline(on_progress)
    rows = dependencies(schedule, in_order=runtime.in_order)
    return run_events(rows, topology, sizes, on_progress)


def predict_time(
    schedule: Schedule,
    network: Network,
    size_bytes: int,
    *,
    element_bytes: int = 1,
    runtime: Runtime = RULE,
    on_progress: OnProgress = ignore_progress,
) -> float:
    """Return the seconds until the last rank has finished: `simulate(...).time_s`, without a timeline if possible.

    Infinite if a failure prevents the end. On the fast path sums may be rounded differently.

        >>> from ringsim import load_network, predict_time, ring_all_reduce
        >>> round(predict_time(ring_all_reduce(64), load_network("dgx-h100-cluster"), 2**30), 3)
        0.042
    """
    sizes = schedule.chunk_bytes(size_bytes, element_bytes)
    if runtime.shared_memory(network):
        number, run_one = _portions(schedule, network, sizes, runtime)
        return number * run_one(on_progress).time_s
    topology = with_in_network_reduction([schedule], priced_topology(network, schedule.num_ranks))
    if path := fast_path(schedule, topology, sizes, in_order=runtime.in_order):
        return path.time_s(on_progress)
    _require_room(schedule)
    rows = dependencies(schedule, in_order=runtime.in_order)
    return run_events(rows, topology, sizes, on_progress).time_s


def lists_more_than(
    max_transfers: float, schedule: Schedule, network: Network, size_bytes: int, *, runtime: Runtime = RULE
) -> bool:
    """Return whether `predict_time` must simulate more than `max_transfers` transfers one by one."""
    if schedule.num_transfers <= max_transfers:
        return False
    if not may_have_representatives(schedule):
        return True
    topology = with_in_network_reduction([schedule], network.topology(schedule.num_ranks))
    path = fast_path(schedule, topology, schedule.chunk_bytes(size_bytes), in_order=runtime.in_order)
    return path is None or path.num_listed > max_transfers


def predict_repeated(
    schedule: Schedule, network: Network, size_bytes: int, runtime: Runtime, *, beside_s: float = 0.0
) -> float:
    """Return the seconds from one execution to the next, which begins `beside_s` after the end of the first."""
    alone_s = beside_s + predict_time(schedule, network, size_bytes, runtime=runtime)
    topology = priced_topology(network, schedule.num_ranks, runtime)
    return max(alone_s, _refill_s(schedule, topology, schedule.chunk_bytes(size_bytes)))


def _refill_s(schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> float:
    """Return the seconds in which the token buckets of all links regain the bytes of one execution."""
    capacity, has_burst = topology.resources.capacity, topology.resources.burst_bytes > 0
    if not has_burst.any():
        return 0.0
    taken = np.zeros(len(capacity) + 1)  # NONE is the last
    for step in schedule.steps:
        ends = (column.astype(np.int64) for column in (step.src, step.dst, step.channel))
        paths = topology.connection_paths(*ends)
        np.add.at(taken, paths.resource, paths.use_per_byte * chunk_bytes[step.chunk][:, None])
    return float((taken[:-1] / capacity)[has_burst].max())


def priced_topology(network: Network, num_ranks: int, runtime: Runtime = RULE) -> Topology:
    """Return the network as the engines see it. Raises ValueError if messages take no time."""
    if runtime.shared_memory(network) is None:
        network.require_priced(num_ranks)
    return runtime.topology(network, num_ranks)


def _require_room(schedule: Schedule) -> None:
    require_memory(f"the times of {schedule.num_transfers:,} transfers", schedule.num_transfers * BYTES_RECORDED)


_SCHEDULES_KEPT = 64


def _portions(
    schedule: Schedule, network: Network, chunk_bytes: Ints, runtime: Runtime
) -> tuple[int, Callable[[OnProgress], Timeline]]:
    """Return the least number of portions that fit into a slot of shared memory, and the run of the largest.

    Portions go one after the other, each with an equal part of every chunk. chunk_bytes: (num_chunks,), of the whole
    tensor.
    """
    costs = network.shared_memory
    assert costs is not None
    passes = _passes(schedule, runtime.in_place, runtime.is_lent)
    longest, most_published = int(chunk_bytes.max(initial=0)), max(passes.most_published, 1)
    number = max(1, -(-longest // max(costs.slot_bytes // most_published, 1)))
    sizes = -(-chunk_bytes // number)
    published_bytes = most_published * int(sizes.max(initial=0))
    topology = network.memory_topology(schedule.num_ranks, published_bytes, runtime.touched_bytes)
    rate = topology.rate
    # A sum written to another buffer takes longer than a sum in place, by this fraction of the time of a copy.
    longer_s = max(1 / rate.reduce_into_bytes_per_s - 1 / rate.reduce_bytes_per_s, 0.0)
    fraction = longer_s * rate.copy_bytes_per_s if longer_s else 0.0
    copies = CopyCounts(passes.published, passes.taken + fraction * passes.apart)

    def run_one(on_progress: OnProgress) -> Timeline:
        return run_events(dependencies(schedule, in_order=runtime.in_order), topology, sizes, on_progress, copies)

    return number, run_one


@lru_cache(maxsize=_SCHEDULES_KEPT)
def _passes(schedule: Schedule, in_place: bool, is_lent: bool) -> MemoryPasses:
    return memory_passes(schedule, in_place=in_place, is_lent=is_lent)
