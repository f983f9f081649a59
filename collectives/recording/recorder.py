"""`Recorder`: the calls of a program whose process groups send nothing, and the time between them.

A call on a recorded group gets the result for ranks that all hold this rank's data. The recorder also records
operators, streams and the waits between streams, if it is told them.
"""

import math
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

import torch
from msgspec.structs import replace
from torch.autograd import Variable

from collectives.runtime import Work
from ringsim.traces import SENDRECV, Operator, TraceCall, TracedStep, TraceEvent, TraceEventKind

BEFORE_THE_STEP = -1
MAIN = "main"  # the stream of the computations, whatever the program calls it
COMPUTATIONS = -1  # in a Position
# Commands that a GPU has accepted and not begun before CUDA lets the CPU wait; nobody documents the number.
COMMAND_QUEUE = 1024
COMMANDS_OF_CALL = 5  # for streams to wait for each other and for the kernel
_BETWEEN = TraceEventKind.CALL, TraceEventKind.COMPUTE
_ALIKE = "collective", "size_bytes", "dtype", "group", "peer"

# By group: its last call that is over, like all calls before. Under COMPUTATIONS: the last event that computes.
Position = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StreamMoment:
    """A moment of a stream in a step. position: the work that is over by then. issued: the commands issued before."""

    step: int
    position: Position
    issued: int


class StreamOrder:
    """The positions of all streams in one step.

    A stream works in order, and waits for another only up to a `StreamMoment`.
    """

    def __init__(self, main: Hashable) -> None:
        self._main = main
        self._positions: dict[Hashable, dict[int, int]] = {}

    def name(self, stream: Any) -> Hashable:
        if stream is self._main or (torch.cuda.is_initialized() and stream == torch.cuda.default_stream()):
            return MAIN
        return stream  # type: ignore[no-any-return]

    def current(self) -> Hashable:
        on_gpu = self.name(torch.cuda.current_stream()) if torch.cuda.is_initialized() else MAIN
        return on_gpu if on_gpu != MAIN else self.name(torch.cpu.current_stream())

    def position(self, stream: Hashable) -> Position:
        return dict(self._positions.get(stream, {}))

    def advance(self, stream: Hashable, position: Position) -> list[int]:
        """Make a stream wait for all of `position`; return the calls for which it had not waited."""
        own = self._positions.setdefault(stream, {})
        later = {key: index for key, index in position.items() if index > own.get(key, BEFORE_THE_STEP)}
        own.update(later)
        return sorted(index for key, index in later.items() if key != COMPUTATIONS)


T = TypeVar("T")
S = TypeVar("S")


class Recorder:
    """Collects the events of one step after the other.

    The time between two calls is a computation. Within a call only local work counts.

    clock: returns seconds; must stand still if nothing is computed.
    issued: commands that the program has given to the GPU.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.steps: list[TracedStep] = []
        self.clock = clock
        self._lock = threading.RLock()
        self._depth = 0
        self._awaited_in_callback: list[RecordedWork] | None = None  # None unless what is chained to a future runs
        self._main_stream = torch.cpu.current_stream()
        self.in_graph = False  # whether compiled code launches the kernels
        self._noted: list[Operator] | None = None
        self.issued = self._over = self._step = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self._step += 1  # also of the steps that are discarded
        self._awaited_in_backward: list[RecordedWork] = []  # a backward pass that has failed leaves some
        self._events: list[TraceEvent] = []
        self._calls: list[TraceCall] = []
        self._computed_s = 0.0  # since the last event
        self._operators: Counter[Operator] = Counter()  # since the last event; the count of each of them is 1
        self._streams = StreamOrder(self._main_stream)
        self._since_s = self.clock()
        self._step_computed_s = 0.0
        # The moments when computing resumed, and the seconds of this step computed by then.
        self._resumed: list[tuple[float, float]] = [(self._since_s, 0.0)]

    @property
    def over(self) -> int:
        """The commands that are over, if the GPU is slower than the CPU, as with large tensors."""
        return max(self._over, self.issued - COMMAND_QUEUE)

    def synchronize(self, mark: StreamMoment | None = None) -> None:
        """Note that the CPU waits for the GPU, up to a mark or for all issued commands."""
        self._over = max(self._over, mark.issued if mark else self.issued)

    @property
    def current_stream(self) -> Hashable:
        return self._streams.current()

    @property
    def has_received(self) -> bool:
        """Whether the program has received a tensor from a single rank, which would have sent other numbers."""
        return any(call.collective == "recv" for call in self._all_calls())

    @property
    def has_bytes(self) -> bool:
        """Whether the program has received bytes from other ranks, as of pickled objects."""
        return any(call.dtype == "uint8" and call.size_bytes for call in self._all_calls())  # a barrier has none

    def _all_calls(self) -> Iterator[TraceCall]:
        return (call for calls in (self._calls, *(step.calls for step in self.steps)) for call in calls)

    @property
    def is_stopped(self) -> bool:
        """Whether the process works for the recording, not the program."""
        return self._depth > 0

    def computed_s(self, moment_s: float) -> float:
        """Return the seconds of computations in this step until a moment of the recorder's clock."""
        index = bisect_right(self._resumed, (moment_s, math.inf)) - 1
        resumed_s, before_s = self._resumed[index]
        computed_s = before_s + moment_s - resumed_s
        is_last = index + 1 == len(self._resumed)
        return computed_s if is_last else min(computed_s, self._resumed[index + 1][1])

    @contextmanager
    def stopped(self) -> Iterator[None]:
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
        self._end_computation()
        self._events.append(TraceEvent(kind, call=call))

    def _end_computation(self) -> None:
        if self._computed_s or self._operators:
            self._streams.advance(MAIN, {COMPUTATIONS: len(self._events)})
            operators = tuple(replace(operator, count=count) for operator, count in self._operators.items())
            self._events.append(TraceEvent(TraceEventKind.COMPUTE, self._computed_s, operators=operators))
        self._computed_s = 0.0
        self._operators.clear()

    def count(self, operator: Operator) -> None:
        """Count a call of an operator, unless its time belongs to a collective.

        On a side stream a copy before a call, or work on the result before another stream waits for it, is part of the
        call. Arithmetic is not: it needs the same multiprocessors on any stream.
        """
        self.issued += 1
        if self._noted is not None:
            self._noted.append(operator)
        if operator.flops or not operator.is_counted or self._streams.current() == MAIN:
            self._operators[replace(operator, in_graph=True) if self.in_graph else operator] += 1

    @contextmanager
    def noting(self, operators: list[Operator]) -> Iterator[None]:
        """Also append the counted operators to a list."""
        outer, self._noted = self._noted, operators
        try:
            yield
        finally:
            self._noted = outer

    def mark(self, stream: Any) -> StreamMoment:
        with self.stopped():
            name = self._streams.name(stream)
            if name == MAIN:
                self._end_computation()
            return StreamMoment(self._step, self._streams.position(name), self.issued)

    def wait_for(self, mark: StreamMoment, stream: Any) -> None:
        with self.stopped():
            if mark.step == self._step:  # what was before the step is over
                self._advance(self._streams.name(stream), mark.position)

    def _advance(self, stream: Any, position: Position) -> None:
        for call in self._streams.advance(stream, position):
            if stream == MAIN:
                self._append(TraceEventKind.READ, call)

    def call(self, call: TraceCall, result: list[torch.Tensor]) -> "RecordedWork":
        with self.stopped():
            self.issued += COMMANDS_OF_CALL
            index, stream = len(self._calls), self._streams.current()
            self._append(TraceEventKind.CALL, index)
            if stream != MAIN:
                position = self._streams.position(stream)
                calls = (over for key, over in position.items() if key not in (COMPUTATIONS, call.group))
                after = position.get(COMPUTATIONS, BEFORE_THE_STEP)
                call = replace(call, on_side_stream=True, after=after, after_calls=tuple(sorted(calls)))
            self._calls.append(call)
            work = RecordedWork(self, self._step, index, result)
            if not call.is_async:
                self._streams.advance(stream, {call.group: index})
                work.is_over = True
        return work

    def sendrecv(self, counterpart: TraceCall, distance: int, result: list[torch.Tensor]) -> "RecordedWork | None":
        """Make a send and a recv one call, which every rank makes with the ranks at the same distance.

        counterpart: the other one. Returns None unless it has been made and not waited for.
        """
        for event in takewhile(lambda event: event.kind in _BETWEEN, reversed(self._events)):
            made = self._calls[event.call] if event.kind is TraceEventKind.CALL else None
            if made and all(getattr(made, name) == getattr(counterpart, name) for name in _ALIKE):
                self._calls[event.call] = replace(made, collective=SENDRECV, peer=distance)
                return RecordedWork(self, self._step, event.call, result)
        return None

    def wait(self, work: "RecordedWork") -> None:
        """Record that the program waits for an asynchronous call; only the first wait counts.

        A callback runs in parallel to the program, and therefore delays only code that waits for its outcome.
        """
        if self._awaited_in_callback is not None:
            self._awaited_in_callback.append(work)
            self.wait_later(work)
            return
        with self.stopped():
            # A call of an earlier step is over: no rank begins a step before it has finished the previous one.
            if not work.is_over and work.step == self._step:
                self._append(TraceEventKind.WAIT, work.index)
                call, stream = self._calls[work.index], self._streams.current()
                advance = self._advance if call.on_side_stream else self._streams.advance
                advance(stream, {call.group: work.index})
            work.is_over = True

    def wait_later(self, work: "RecordedWork") -> None:
        """Record a wait for a call at the end of the current backward pass, if any.

        Code that takes a future there may wait in C++, as DDP does.
        """
        if torch._C._current_graph_task_id() == -1:
            return
        if not self._awaited_in_backward:
            Variable._execution_engine.queue_callback(self._wait_for_all)
        self._awaited_in_backward.append(work)

    def called_back(self, works: list["RecordedWork"], chain: Callable[[], T]) -> T:
        """Call `chain`, which runs a callback; add the calls that it waits for to `works`."""
        before, self._awaited_in_callback = self._awaited_in_callback, works
        try:
            return chain()
        finally:
            self._awaited_in_callback = before

    def collect_all(self, futures: "list[torch.futures.Future[Any]]") -> "torch.futures.Future[Any]":
        works = [work for future in futures if isinstance(future, RecordedFuture) for work in future.works]
        return self.future_after(torch._C._collect_all(futures), works)  # type: ignore[arg-type]

    def future_after(self, outcome: "torch.futures.Future[T]", works: list["RecordedWork"]) -> torch.futures.Future[T]:
        chained: RecordedFuture[T] = RecordedFuture(self, works)
        try:
            chained.set_result(outcome.value())
        except RuntimeError:  # it has failed, or the program completes it later
            for work in works:
                self.wait(work)
            return outcome
        return chained

    def _wait_for_all(self) -> None:
        """Wait at the end of the backward pass; if it is nested, at the end of the outer one."""
        if (node := torch._C._current_autograd_node()) is not None:
            node.register_hook(lambda *_: Variable._execution_engine.queue_callback(self._wait_for_all))
            return
        for work in self._awaited_in_backward:
            self.wait(work)
        self._awaited_in_backward.clear()

    def end_step(self) -> None:
        with self.stopped():
            self._end_computation()
            self.steps.append(TracedStep(tuple(self._events), tuple(self._calls)))
            self._begin_step()


class RecordedWork(Work):
    """A call that has its result, but is in progress in the trace."""

    def __init__(self, recorder: Recorder, step: int, index: int, result: list[torch.Tensor]) -> None:
        over = Work.over(result)
        super().__init__(over._future, result)
        self._recorder = recorder
        self.step, self.index = step, index
        self.is_over = False

    def wait(self, timeout: object = None) -> bool:  # noqa: ARG002
        self._recorder.wait(self)
        return True

    def block_current_stream(self) -> None:
        self.wait()

    def future_of(self, value: Callable[[], T]) -> "torch.futures.Future[T]":
        self._recorder.wait_later(self)
        return self._recorder.future_after(super().future_of(value), [self])


class RecordedFuture(torch.futures.Future[T]):
    """A future that has its value; waiting for it, or reading it, waits for the calls in `works`."""

    def __init__(self, recorder: Recorder, works: list[RecordedWork]) -> None:
        super().__init__()
        self._recorder, self.works = recorder, works

    def wait(self) -> T:
        return self.value()

    def value(self) -> T:
        for work in self.works:
            self._recorder.wait(work)
        return super().value()

    def then(self, callback: Callable[[torch.futures.Future[T]], S]) -> torch.futures.Future[S]:
        works = [*self.works]
        outcome = self._recorder.called_back(works, lambda: super(RecordedFuture, self).then(callback))
        return self._recorder.future_after(outcome, works)

    def add_done_callback(self, callback: Callable[[torch.futures.Future[T]], None]) -> None:
        self._recorder.called_back([], lambda: super(RecordedFuture, self).add_done_callback(callback))
