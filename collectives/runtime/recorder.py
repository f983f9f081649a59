"""`Recorder`: the calls of a program whose process groups send nothing, and the time between them.

A group with a recorder pretends: whoever calls a collective of it gets the result that would come if all ranks held
what this one holds, and the call is noted. Between two calls the program computes, and that is timed. If somebody tells
the recorder the operators of the program, too, it notes which events a call needs and which computation reads it.
"""

import math
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.autograd import Variable

from collectives.runtime.data_flow import DataFlow
from collectives.runtime.work import Work
from ringsim.traces import Call, Operator, TracedStep, TraceEvent, TraceEventKind

T = TypeVar("T")


class Recorder:
    """Collects the events of one step after the other.

    Time that passes between two calls is a computation; time within a call, in which results are made up, counts only
    as far as the call does local work (`local`).

    clock: returns seconds; one that stands still if nothing is computed.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.steps: list[TracedStep] = []
        self.clock = clock
        self._lock = threading.RLock()
        self._depth = 0
        self._awaited_in_backward: list[RecordedWork] = []
        self._flow: DataFlow | None = None
        self._main_stream = torch.cpu.current_stream()
        self._begin_step()

    def _begin_step(self) -> None:
        self._events: list[TraceEvent] = []
        self._calls: list[Call] = []
        self._computed_s = 0.0  # since the last event
        self._operators: Counter[Operator] = Counter()  # since the last event; the count of each of them is 1
        if self._flow is not None:
            self._flow = DataFlow()
        self._since_s = self.clock()
        self._step_computed_s = 0.0
        # When computing went on, and how much of this step had been computed then.
        self._resumed: list[tuple[float, float]] = [(self._since_s, 0.0)]

    @property
    def is_stopped(self) -> bool:
        """Whether what the process does now belongs to the recording, and not to the program."""
        return self._depth > 0

    def computed_s(self, moment_s: float) -> float:
        """Return the seconds of computations in this step until a moment of it, by the recorder's clock."""
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
                seconds = self.clock() - self._since_s
                self._computed_s += seconds
                self._step_computed_s += seconds
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._since_s = self.clock()
                    self._resumed.append((self._since_s, self._step_computed_s))

    def _append(self, kind: TraceEventKind, call: int) -> None:
        """Append an event after the computation that has gone on until now."""
        self._end_computation()
        self._events.append(TraceEvent(kind, call=call))

    def _end_computation(self) -> None:
        if self._computed_s or self._operators:
            operators = tuple(replace(operator, count=count) for operator, count in self._operators.items())
            self._events.append(TraceEvent(TraceEventKind.COMPUTE, self._computed_s, operators=operators))
        self._computed_s = 0.0
        self._operators.clear()

    def watch_operators(self, is_watching: bool) -> None:
        """From now on `read` and `write` are called for each operator of the program, or no longer."""
        self._flow = DataFlow() if is_watching else None

    def read(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that an operator of the program is about to read the tensors."""
        if self._flow is not None and not self._is_on_side_stream():
            for call in self._flow.take_unread(tensors):
                self._append(TraceEventKind.READ, call)

    def write(
        self, operator: Operator, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], is_copy: bool
    ) -> None:
        """Note that an operator has read the sources and written the targets.

        On a stream of its own it delays no computation, so it counts as part of the call that it is for: copies before
        the call, and whatever is done to the result before another stream reads it.
        """
        if self._flow is None:
            return
        on_side_stream = self._is_on_side_stream()
        if is_copy or on_side_stream:
            self._flow.copy(sources, targets)
        else:
            self._flow.write(targets, len(self._events))  # the computation that is not over yet
        if not on_side_stream:
            self._operators[operator] += 1

    def _is_on_side_stream(self) -> bool:
        if torch.cuda.is_initialized() and torch.cuda.current_stream() != torch.cuda.default_stream():
            return True
        # A placeholder, which programs and FSDP2 use as they would a stream of a GPU.
        return torch.cpu.current_stream() is not self._main_stream

    def call(self, call: Call, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> "RecordedWork":
        """Note a call that reads and writes these tensors, and has its result already, and return its work."""
        with self.stopped():
            self._end_computation()
            index = len(self._calls)
            after = None
            if self._flow is not None:
                after = self._flow.last_writer(inputs) if inputs else None
                self._flow.leave_result(outputs, len(self._events), index)
            self._append(TraceEventKind.CALL, index)
            self._calls.append(replace(call, on_side_stream=self._is_on_side_stream(), after=after))
            work = RecordedWork(self, len(self.steps), index, list(outputs or inputs))
            if not call.is_async:
                work.is_over = True
        return work

    def wait(self, work: "RecordedWork") -> None:
        """Note that the program waits for an asynchronous call; only the first wait counts."""
        with self.stopped():
            # One of an earlier step is over: no rank begins its step before it has all of the step before.
            if not work.is_over and work.step == len(self.steps):
                self._append(TraceEventKind.WAIT, work.index)
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
            self._end_computation()
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
