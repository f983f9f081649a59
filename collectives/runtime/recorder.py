"""`Recorder`: the calls of a program whose process groups send nothing, and the time between them.

A group with a recorder pretends: whoever calls a collective of it gets the result that would come if all ranks held
what this one holds, and the call is noted. Between two calls the program computes, and that is timed.
"""

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.autograd import Variable

from collectives.runtime.work import Work
from ringsim.traces import Call, TracedStep, TraceEvent, TraceEventKind

T = TypeVar("T")


class Recorder:
    """Collects the events of one step after the other.

    Time that passes between two calls is a computation; time within a call, in which results are made up, counts only
    as far as the call does local work (`local`).
    """

    def __init__(self) -> None:
        self.steps: list[TracedStep] = []
        self._lock = threading.RLock()
        self._depth = 0
        self._awaited_in_backward: list[RecordedWork] = []
        self._begin_step()

    def _begin_step(self) -> None:
        self._events: list[TraceEvent] = []
        self._calls: list[Call] = []
        self._since_s = time.perf_counter()
        self._computed_s = 0.0
        # When computing went on, and how much of this step had been computed then.
        self._resumed: list[tuple[float, float]] = [(self._since_s, 0.0)]

    def computed_s(self, moment_s: float) -> float:
        """Return the seconds of computations in this step until a moment of it, by `time.perf_counter`."""
        index = bisect_right(self._resumed, (moment_s, math.inf)) - 1
        resumed_s, before_s = self._resumed[index]
        computed_s = before_s + moment_s - resumed_s
        is_last = index + 1 == len(self._resumed)
        return computed_s if is_last else min(computed_s, self._resumed[index + 1][1])

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Do not count the time of the block, which belongs to the recording."""
        with self._lock:
            if self._depth == 0:
                self._compute(time.perf_counter() - self._since_s)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._since_s = time.perf_counter()
                    self._resumed.append((self._since_s, self._computed_s))

    def _compute(self, seconds: float) -> None:
        self._computed_s += seconds
        if self._events and self._events[-1].kind is TraceEventKind.COMPUTE:  # what came between was not worth an event
            seconds += self._events.pop().seconds
        self._events.append(TraceEvent(TraceEventKind.COMPUTE, seconds))

    def call(self, call: Call, result: list[torch.Tensor]) -> "RecordedWork":
        """Note a call, which has the result already, and return its work."""
        with self.stopped():
            self._calls.append(call)
            work = RecordedWork(self, len(self.steps), len(self._calls) - 1, result)
            self._events.append(TraceEvent(TraceEventKind.CALL, call=work.index))
            if not call.is_async:
                work.is_over = True
        return work

    def wait(self, work: "RecordedWork") -> None:
        """Note that the program waits for an asynchronous call; only the first wait counts."""
        with self.stopped():
            # One of an earlier step is over: no rank begins its step before it has all of the step before.
            if not work.is_over and work.step == len(self.steps):
                self._events.append(TraceEvent(TraceEventKind.WAIT, call=work.index))
            work.is_over = True

    def wait_later(self, work: "RecordedWork") -> None:
        """Note, at the end of the backward pass that goes on now, that the program waits for a call.

        Whoever takes a future waits for it where Python does not come by, as DistributedDataParallel does. Outside of a
        backward pass the wait is noted at once.
        """
        if torch._C._current_graph_task_id() == -1:
            self.wait(work)
            return
        if not self._awaited_in_backward:
            Variable._execution_engine.queue_callback(self._wait_for_all)
        self._awaited_in_backward.append(work)

    def _wait_for_all(self) -> None:
        for work in self._awaited_in_backward:
            self.wait(work)
        self._awaited_in_backward.clear()

    def end_step(self) -> None:
        """End the step now, and begin the next one."""
        with self.stopped():
            self.steps.append(TracedStep(tuple(self._events), tuple(self._calls)))
            self._begin_step()


class RecordedWork(Work):
    """A call that is over as far as its result goes, and under way as far as the trace does."""

    def __init__(self, recorder: Recorder, step: int, index: int, result: list[torch.Tensor]) -> None:
        over = Work.over(result)
        super().__init__(over._future, result)
        self._recorder = recorder
        self.step, self.index = step, index
        self.is_over = False

    def wait(self, timeout: object = None) -> bool:  # noqa: ARG002
        self._recorder.wait(self)
        return True

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        self._recorder.wait_later(self)
        return super().get_future()

    def future_of(self, value: Callable[[], T]) -> "torch.futures.Future[T]":
        self._recorder.wait_later(self)
        return super().future_of(value)


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """The recorder of a group, and the group's index in the trace."""

    recorder: Recorder
    index: int


_RECORDED: WeakKeyDictionary[dist.ProcessGroup, RecordedGroup] = WeakKeyDictionary()


def record_group(group: dist.ProcessGroup, recorded: RecordedGroup) -> None:
    """From now on the calls of `group` are recorded, and nothing is sent."""
    _RECORDED[group] = recorded


def recorded_group(group: dist.ProcessGroup) -> RecordedGroup | None:
    """Return where the calls of `group` are recorded; None if it really communicates."""
    return _RECORDED.get(group) if _RECORDED else None
