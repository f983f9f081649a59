"""`Past`: what the step engine keeps of earlier steps, which is when chunks were written and sent."""

from abc import ABC, abstractmethod
from collections import deque

import numpy as np
import numpy.typing as npt

from ringsim.network import connection_keys
from ringsim.schedule import NEVER, Ints, Schedule, Step, only_value, require_memory
from ringsim.simulation.engines.numbers import Growing, Numbers
from ringsim.simulation.engines.step_pattern import Cost, Index, StepPattern, in_turn
from ringsim.simulation.timeline import Seconds

NO_PEER = -1  # in place of a rank: nothing was sent yet


class Past(ABC):
    """When chunks were written and sent in the steps so far."""

    @property
    @abstractmethod
    def time_s(self) -> float:
        """When the last write so far had been applied."""

    @abstractmethod
    def receivers(self, step: Step) -> Ints:
        """For each transfer the number of what applies it, one transfer after the other."""

    @abstractmethod
    def ready_s(self, step: Step, pattern: StepPattern) -> Seconds | float:
        """When what a step sends had been written."""

    @abstractmethod
    def send(self, step: Step, pattern: StepPattern, left_s: Seconds) -> None:
        """Take note of when a step's messages left."""

    @abstractmethod
    def free_s(self, step: Step, pattern: StepPattern) -> Seconds | float:
        """When the chunks that a step writes had been sent, where a write must wait for that."""

    @abstractmethod
    def apply(self, step: Step, pattern: StepPattern, free_s: Seconds, cost: Cost) -> tuple[Seconds, Seconds]:
        """When what a step writes begins to be applied, and has been."""


class PastOfRanks(Past):
    """Where a rank has one connection in and one out, and one transfer a step on each.

    What it has applied up to a step has all been applied when the last of it has, and the same holds for what it sends.
    """

    def __init__(self, schedule: Schedule) -> None:
        kept = min(schedule.steps.lookback + 1, schedule.num_steps)
        require_memory(f"{schedule}: the times of its last {kept:,} steps", 2 * 8 * kept * schedule.num_ranks)
        self._applied = _History(schedule.num_ranks, schedule.steps.lookback)
        self._left = _History(schedule.num_ranks, schedule.steps.lookback)

    @property
    def time_s(self) -> float:
        return float(self._applied.latest.max())

    def receivers(self, step: Step) -> Ints:
        return step.dst

    def ready_s(self, step: Step, pattern: StepPattern) -> Seconds | float:
        return self._applied.at(step.data_dependency, pattern.src)

    def send(self, step: Step, pattern: StepPattern, left_s: Seconds) -> None:  # noqa: ARG002
        all_left = self._left.latest.copy()
        all_left[pattern.src] = left_s
        self._left.append(all_left)

    def free_s(self, step: Step, pattern: StepPattern) -> Seconds | float:
        return self._left.at(step.buffer_dependency, pattern.dst)

    def apply(
        self,
        step: Step,  # noqa: ARG002
        pattern: StepPattern,
        free_s: Seconds,
        cost: Cost,
    ) -> tuple[Seconds, Seconds]:
        all_applied = self._applied.latest.copy()
        apply, applied = in_turn(pattern.dst, pattern.dst_turns, free_s, cost, all_applied)
        self._applied.append(all_applied)
        return apply, applied


class PastOfChunks(Past):
    """For each chunk of each rank when it was last written, and until when it was sent.

    in_order: see `dependencies`; a rank then applies what it receives as if it had one connection.
    """

    def __init__(self, schedule: Schedule, in_order: bool) -> None:
        num_places = schedule.num_ranks * schedule.num_chunks
        require_memory(f"{schedule}: when each chunk of each rank was written and sent", 2 * 8 * num_places)
        self._num_ranks, self._num_chunks, self._in_order = schedule.num_ranks, schedule.num_chunks, in_order
        self._written, self._sent = np.zeros(num_places), np.zeros(num_places)
        self._connections = Numbers()
        self._busy_until = Growing(0.0)  # of a receiver
        self._last_peer = Growing(NO_PEER)  # of a channel
        self._time_s = 0.0

    @property
    def time_s(self) -> float:
        return self._time_s

    def receivers(self, step: Step) -> Ints:
        """Connections; in order, ranks."""
        if self._in_order:
            return step.dst
        return self._connections.of(connection_keys(step.src, step.dst, step.channel, self._num_ranks))

    def ready_s(self, step: Step, pattern: StepPattern) -> Seconds | float:
        ready: Seconds = self._written[step.src * self._num_chunks + step.chunk]
        if not self._in_order:
            return ready
        all_received = self._busy_until.at_least(self._num_ranks)[step.src]
        changes_peer = self._changes_peer(step, pattern)
        ready[changes_peer] = np.maximum(ready, all_received)[changes_peer]
        return ready

    def _changes_peer(self, step: Step, pattern: StepPattern) -> npt.NDArray[np.bool_]:
        """Whether the transfer before this one on its channel, if there is one, went to another rank."""
        changes = np.zeros(len(step), dtype=np.bool_)
        for rows, channel in pattern.channel_turns:
            last_peer = self._last_peer.at_least(channel.stop if isinstance(channel, slice) else int(channel.max()) + 1)
            changes[rows] = (last_peer[channel] != NO_PEER) & (last_peer[channel] != step.dst[rows])
            last_peer[channel] = step.dst[rows]
        return changes

    def send(self, step: Step, pattern: StepPattern, left_s: Seconds) -> None:  # noqa: ARG002
        np.maximum.at(self._sent, step.src * self._num_chunks + step.chunk, left_s)

    def free_s(self, step: Step, pattern: StepPattern) -> Seconds | float:  # noqa: ARG002
        free: Seconds = self._sent[step.dst * self._num_chunks + step.chunk]
        return free

    def apply(self, step: Step, pattern: StepPattern, free_s: Seconds, cost: Cost) -> tuple[Seconds, Seconds]:
        place, receiver = step.dst * self._num_chunks + step.chunk, pattern.receiver
        busy_until = self._busy_until.at_least(max(self._num_ranks, len(self._connections)))
        begin, end = np.empty(len(step)), np.empty(len(step))
        cost = np.broadcast_to(cost, len(step))
        for rows, _ in pattern.dst_turns:
            earlier = np.maximum(busy_until[receiver[rows]], self._written[place[rows]])
            begin[rows] = np.maximum(free_s[rows], earlier)
            end[rows] = begin[rows] + cost[rows]
            busy_until[receiver[rows]] = self._written[place[rows]] = end[rows]
        self._time_s = max(self._time_s, end.max(initial=0.0))
        return begin, end


class _History:
    """A time per rank that only grows, as it stood after each of the last `lookback` steps."""

    def __init__(self, num_ranks: int, lookback: int) -> None:
        self.latest: Seconds = np.zeros(num_ranks)
        self._kept: deque[Seconds] = deque(maxlen=lookback + 1)
        self._next_step = 0

    def append(self, times: Seconds) -> None:
        """Take note of the times as they are after the next step; they must not be changed any more."""
        self.latest = times
        self._kept.append(times)
        self._next_step += 1

    def at(self, step: Ints, rank: Index) -> Seconds | float:
        """The time of each rank as it stood after each step; 0 where the step is NEVER."""
        only = only_value(step)
        if only is not None:
            return 0.0 if only == NEVER else self._kept[only - self._next_step][rank]
        times = np.zeros(len(step))
        ranks = np.arange(len(self.latest))[rank]
        for number in np.unique(step):
            if number != NEVER:
                rows = step == number
                times[rows] = self._kept[int(number) - self._next_step][ranks[rows]]
        return times
