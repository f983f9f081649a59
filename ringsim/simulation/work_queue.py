"""`time_queue`: when each of several collectives begins and ends that wait in a queue for workers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ringsim.network import AnyNetwork, Topology
from ringsim.schedule import Schedule, require_memory
from ringsim.simulation.engines.by_queue import Queued, run_queue
from ringsim.simulation.in_switch import serving
from ringsim.simulation.simulate import predict_time, sound_topology

BYTES_RUN = 300  # of memory for each transfer of a queue, at most


class QueuedCall(NamedTuple):
    """A collective that is called at `ready_s`.

    size_bytes: of the whole tensor, elements of `element_bytes` each.
    call_s: what the call takes before its first message.
    network: over which its messages go, in place of that of the queue; for one worker on a network of steady times.
    """

    schedule: Schedule
    size_bytes: int
    element_bytes: int = 1
    ready_s: float = 0.0
    call_s: float = 0.0
    network: AnyNetwork | None = None


class Span(NamedTuple):
    """When a collective begins, a worker having taken it, and ends; infinite if it never does."""

    begin_s: float
    end_s: float


def time_queue(
    calls: Sequence[QueuedCall], network: AnyNetwork, num_workers: int, *, in_order: bool = False
) -> list[Span]:
    """When each call begins and ends if `num_workers` workers of every rank take them in their order.

    A worker takes the next call when its last one has ended on all ranks. One worker is a stream of NCCL's; Gloo has
    two. What two workers do at once shares links, memory and cores, also the connection between two ranks.

    in_order: of each collective, as of `simulate`.

    Raises ValueError for a size that is not whole elements, calls of different numbers of ranks, a first call before 0,
    no worker, or a network of its own for a call that may share the network with others.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers {num_workers}: must be at least 1")
    num_ranks = {call.schedule.num_ranks for call in calls}
    if len(num_ranks) > 1:
        raise ValueError(f"calls of {sorted(num_ranks)} ranks: a queue is of one process group")
    if not calls:
        return []
    for number, call in enumerate(calls):
        if not math.isfinite(call.ready_s):
            raise ValueError(f"calls[{number}]: ready_s {call.ready_s}: must be finite")
    if calls[0].ready_s < 0:
        raise ValueError(f"ready_s {calls[0].ready_s:g}: a queue begins at 0")
    ready_s = np.maximum.accumulate([call.ready_s for call in calls]).tolist()
    topology = sound_topology(network, *num_ranks)
    if num_workers == 1 and has_steady_times(topology):
        return _one_after_the_other(calls, ready_s, network, in_order)
    for number, call in enumerate(calls):
        if call.network is not None:
            raise ValueError(f"calls[{number}]: network: all calls share one with several workers, jitter or failures")
    topology = serving([call.schedule for call in calls], topology)
    num_transfers = sum(call.schedule.num_transfers for call in calls)
    require_memory(f"{len(calls)} collectives of {num_transfers:,} transfers", num_transfers * BYTES_RUN)
    queue = [_queued(call, at) for call, at in zip(calls, ready_s, strict=True)]
    begin_s, end_s = run_queue(queue, topology, num_workers, in_order=in_order)
    return [Span(*times) for times in zip(begin_s.tolist(), end_s.tolist(), strict=True)]


def _queued(call: QueuedCall, ready_s: float) -> Queued:
    sizes = call.schedule.chunk_bytes(call.size_bytes, call.element_bytes)
    return Queued(call.schedule, sizes, ready_s, call.call_s)


def has_steady_times(topology: Topology) -> bool:
    """Whether a collective takes the same time whenever it begins: nothing is drawn at random, and nothing fails."""
    return topology.jitter is None and not np.isfinite(topology.resources.fails_at_s).any()


def _one_after_the_other(
    calls: Sequence[QueuedCall], ready_s: Sequence[float], network: AnyNetwork, in_order: bool
) -> list[Span]:
    """With one worker no two share anything: each takes what it takes alone."""
    alone_s: dict[tuple[int, int, int, int, float], float] = {}
    spans = []
    free_s = -math.inf
    for call, ready in zip(calls, ready_s, strict=True):
        key = id(call.schedule), id(call.network), call.size_bytes, call.element_bytes, call.call_s
        if key not in alone_s:
            messages_s = predict_time(
                call.schedule,
                call.network or network,
                call.size_bytes,
                element_bytes=call.element_bytes,
                in_order=in_order,
            )
            alone_s[key] = call.call_s + messages_s
        begin_s = max(ready, free_s)
        free_s = begin_s + alone_s[key]
        spans.append(Span(begin_s, free_s))
    return spans
