"""`StepPattern`: who sends to whom in a step, at what cost, and what must take turns."""

from collections.abc import Sequence

import numpy as np

from ringsim.network import Floats, Topology
from ringsim.schedule import Ints, Step
from ringsim.simulation.timeline import Seconds

Cost = Floats | float  # seconds of each transfer, or of any


def of_chunk(cost: Cost, chunk: Ints) -> Cost:
    """What each of these chunks takes."""
    return cost if isinstance(cost, float) else cost[chunk]


def one_if_same(values: Floats) -> Floats | float:
    """The one value that they all have, as a number, which NumPy is faster with."""
    return float(values[0]) if len(values) and (values == values[0]).all() else values


Index = Ints | slice  # a slice where the ranks or links are neighbours, in order
Turns = Sequence[tuple[Index, Index]]  # rows, and what they use: nothing twice in one turn


class StepPattern:
    """Who sends to whom in a step, at what cost, and whose transfers must take turns: the same for many steps.

    channel: of each transfer a number for its channel of its rank. receiver: likewise, for what applies it.
    by_chunk: if all paths and ranks are alike, what sending and adding each chunk takes (one number: any chunk).
    """

    def __init__(self, step: Step, channel: Ints, receiver: Ints, topology: Topology, size: Cost) -> None:
        self.columns = step.src, step.dst, step.channel  # kept, so that their ids stay theirs
        self.src, self.dst, self.channel = _index(step.src), _index(step.dst), _index(channel)
        self.receiver = receiver
        self.dst_turns, self.channel_turns = _turns(step.dst), _turns(channel)
        paths, processors = topology.connection_paths(step.src, step.dst, step.channel), topology.processors
        paths.check()
        self.latency_s = one_if_same(paths.latency_s)
        self.bytes_per_s = one_if_same(paths.alone_bytes_per_s(topology.resources))
        self.send_overhead_s = one_if_same(processors.send_overhead_s[step.src])
        self.receive_overhead_s = one_if_same(processors.receive_overhead_s[step.dst])
        self.reduce_bytes_per_s = one_if_same(processors.reduce_bytes_per_s[step.dst])
        self.by_chunk: tuple[Cost, Cost] | None = None
        sending, adding = (self.send_overhead_s, self.bytes_per_s), (self.receive_overhead_s, self.reduce_bytes_per_s)
        if all(isinstance(cost, float) for cost in (*sending, *adding)):
            self.by_chunk = sending[0] + size / sending[1], adding[0] + size / adding[1]


def _index(numbers: Ints) -> Index:
    first = int(numbers[0]) if len(numbers) else 0
    neighbours = slice(first, first + len(numbers))
    return neighbours if (numbers == np.arange(neighbours.start, neighbours.stop)).all() else numbers


def _turns(numbers: Ints) -> Turns:
    """In the first turn the first row of each number, in the second its second, and so on."""
    if not len(numbers):
        return []
    counts = np.bincount(numbers)
    if counts.max() == 1:
        return [(slice(None), _index(numbers))]
    order = np.argsort(numbers, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)])[numbers[order]]
    turn = np.arange(len(numbers)) - first
    by_turn = order[np.argsort(turn, kind="stable")]
    rows = np.split(by_turn, np.cumsum(np.bincount(turn))[:-1])
    return [(row, numbers[row]) for row in rows]


def in_turn(
    resource: Index, turns: Turns, ready: Seconds | float, cost: Cost, busy_until: Seconds
) -> tuple[Seconds, Seconds]:
    """When each transfer begins and ends on its resource, which serves its transfers in the order of rows.

    `busy_until` (num_resources,) is brought up to date.
    """
    if len(turns) == 1:
        begin: Seconds = np.maximum(busy_until[resource], ready)
        end = begin + cost
        busy_until[resource] = end
        return begin, end
    num_rows = sum(len(busy_until[used]) for _, used in turns)
    begin, end = np.empty(num_rows), np.empty(num_rows)
    ready, cost = np.broadcast_to(ready, num_rows), np.broadcast_to(cost, num_rows)
    for rows, used in turns:
        begin[rows] = np.maximum(ready[rows], busy_until[used])
        end[rows] = begin[rows] + cost[rows]
        busy_until[used] = end[rows]
    return begin, end
