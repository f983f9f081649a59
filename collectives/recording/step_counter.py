"""`StepCounter`: ends a recorded step at each optimizer step, and the program at the last one.

Everything between two optimizer steps is part of a step, also a validation after an epoch. Steps are therefore watched
until two have the same calls and equally many operations: these are usual ones.
"""

import os
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from mmap import mmap
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from statistics import median_low
from typing import Any, NamedTuple, NoReturn, Self

import torch
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

from collectives.recording.memory import all_of
from collectives.recording.operators import OperatorWatch
from collectives.recording.recorder import Recorder
from collectives.recording.replacements import Replacement, warn
from ringsim.traces import StepMemory, TraceCall, TracedStep
from ringsim.units import plural

# In the first step the optimizer allocates its state, and in the second DistributedDataParallel agrees on its buckets,
# if the first one has synchronised. The third one makes the same calls as all later ones.
FIRST_WATCHED = 1
FIRST_USUAL = 2
_AGREEING = "broadcast", "int32"
MORE_WORK = 1.05  # times the operations of a step: less changes a prediction by less than its error
LAST_USUAL = 5  # as after epochs of two batches with validation, or with batches of other sizes each
MAX_STOPS = 10  # that a program may catch, or not hear
# The signal by which the recorder interrupts a program: SIGINT may be ignored, and programs often handle SIGTERM.
INTERRUPTING = signal.SIGRTMIN
LOOK_S = 0.2  # how often a process that waits for a message looks whether a rank has left

GIVE_STEPS = "give --steps the number of steps from one to the next"


class StepWork(NamedTuple):
    """The operations of a step, and its calls."""

    flops: int
    calls: tuple[tuple[str, int, int], ...] = ()


class StopRecordingError(BaseException):
    """Stops the program: all steps are recorded."""


# The functions that processes of multiprocessing, torch and concurrent.futures run which get one task after another.
_OF_POOLS = {"multiprocessing.pool", "torch.multiprocessing.pool", "concurrent.futures.process"}


def _is_in_pool() -> bool:
    target = getattr(multiprocessing.current_process(), "_target", None)
    return getattr(target, "__module__", None) in _OF_POOLS


def _interrupting() -> signal.Signals:
    """Return the signal that raises KeyboardInterrupt in the recorder's process."""
    return INTERRUPTING if callable(signal.getsignal(INTERRUPTING)) else signal.SIGINT


def _is_closed(process: BaseProcess) -> bool:
    return process._closed  # type: ignore[attr-defined, no-any-return]


class ForkedProcesses:
    """The processes that the program forks, to load data, to log, or as its ranks, but not to train.

    A rank ends where it makes the first process group. Where the program joins the recorded rank, or waits for its
    message, this process runs its function. A rank of a pool is refused, since the task that it runs is unknown here.
    are_ranks: whether an optimizer has stepped in one of them, or a pool has ranks; known in all.
    """

    def __init__(self) -> None:
        self._pid, self._interrupt = os.getpid(), _interrupting()
        self._shared = memoryview(mmap(-1, 16)).cast("q")  # whether they are ranks, and the pid of the recorded one
        self._functions: dict[BaseProcess, dict[str, Any]] = {}  # with their arguments

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._pid

    @property
    def are_ranks(self) -> bool:
        return self._shared[0] > 0

    def replacements(self) -> Iterator[Replacement]:
        start, join = BaseProcess.start, BaseProcess.join
        waiting: Any = Connection  # all ways to receive come to these two
        poll, receive = waiting._poll, waiting._recv_bytes

        def started(process: Any) -> None:
            self._functions[process] = {name: getattr(process, name) for name in ("_target", "_args", "_kwargs")}
            start(process)  # which deletes them

        def joined(process: Any, timeout: float | None = None) -> None:
            join(process, timeout)
            self._run_if_recorded(process)

        def polled(connection: Any, timeout: float | None) -> Any:
            if threading.current_thread() is threading.main_thread():
                for process in list(self._functions):
                    self._run_if_recorded(process)
            return poll(connection, timeout)

        def received(connection: Any, maxsize: int | None = None) -> Any:
            while self._functions and not polled(connection, LOOK_S):
                pass
            return receive(connection, maxsize)

        yield "multiprocessing.process.BaseProcess.start", started
        yield "multiprocessing.process.BaseProcess.join", joined
        yield "multiprocessing.connection.Connection._poll", polled
        yield "multiprocessing.connection.Connection._recv_bytes", received

    def _run_if_recorded(self, process: BaseProcess) -> None:
        if not self.is_forked and not _is_closed(process) and process.pid == self._shared[1]:
            self._shared[1] = 0
            vars(process).update(self._functions[process])
            process.run()

    def join(self) -> None:
        for process in [one for one in self._functions if not one.daemon and not _is_closed(one)]:
            process.join()

    def leave_rank(self, is_recorded: bool) -> None:
        """End this process if forked; for the recorded rank, let the parent run its function."""
        if self.is_forked:
            if _is_in_pool():
                self.refuse()
            self._shared[1] = os.getpid() if is_recorded else self._shared[1]
            sys.stdout.flush()
            os._exit(0)

    def refuse(self) -> NoReturn:
        """End this forked process; its parent, which may wait for the tasks of a pool for ever, reports the error."""
        is_first, self._shared[0] = not self._shared[0], 1
        for _ in range(MAX_STOPS if is_first and _is_in_pool() else 0):
            time.sleep(LOOK_S)  # while the parent starts other processes, it does not hear
            os.kill(self._pid, self._interrupt)
        os._exit(1)

    def end_if_forked(self, error: BaseException | None) -> None:
        """End a forked process at the program's end as Python does, without a trace."""
        if self.is_forked:
            if error is not None:
                print(error, file=sys.stderr)  # noqa: T201
            code = getattr(error.__context__, "code", 1) if error else 0
            sys.stdout.flush()
            os._exit(code if isinstance(code, int) else 1)

    def end_children(self) -> None:
        children = multiprocessing.active_children()
        for process in children:
            process.terminate()
        for process in children:
            process.join(1.0)
            process.kill()


class StepCounter:
    """Counts the steps of the first optimizer, within its context.

    If it is gone when another one steps, it was a trial, and its steps are discarded.

    watch_all: watch all steps after the warm-up, since none is timed.
    give_up: ends the process with a message, if the program catches every exception.
    """

    def __init__(
        self, recorder: Recorder, num_recorded: int, watch_all: bool, give_up: Callable[[str], object]
    ) -> None:
        self._recorder, self._watch_all, self._give_up = recorder, watch_all, give_up
        self._num_recorded = num_recorded
        self._num_warm_up = FIRST_USUAL if watch_all else FIRST_USUAL + 1
        self._watch = self._of_main = OperatorWatch(recorder)
        self._usual: int | None = None
        self._memories: dict[int, StepMemory | None] = {}  # by step
        self._awaited = weakref.WeakSet[DistributedDataParallel]()  # to agree on their buckets
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._ending = WeakIdKeyDictionary()  # the parameters whose update ends a step
        self._have_stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._idle: set[str] = set()  # the kinds of optimizers that have not, when the last step is recorded
        self._thread = threading.main_thread()  # that is watched
        self._stops = 0
        self.processes = ForkedProcesses()

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._stepped)
        with self._recorder.stopped():
            self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
        self._stop_watch()  # the program ended or failed meanwhile
        if self._of_main.is_watching:
            self._of_main.stop()

    def __str__(self) -> str:
        return f"{plural(len(self._recorder.steps), 'step')} of a torch.optim.Optimizer; {self._num_warm_up} warm up"

    @property
    def is_complete(self) -> bool:
        is_enough = self._records_usual or len(self._recorder.steps) == self._num_warm_up + self._num_recorded
        return self._usual is not None and is_enough

    @property
    def recorded(self) -> tuple[TracedStep, ...]:
        return tuple(self.watched if self._records_usual else self._recorder.steps[self._num_warm_up :])

    @property
    def watched(self) -> list[TracedStep]:
        """The usual step; if the program ends before one is known, the most usual one."""
        usual = self._usual_step
        return [] if usual is None else [self._recorder.steps[usual]]

    @property
    def memory(self) -> StepMemory | None:
        return self._memories.get(self._usual_step or 0)

    @property
    def _records_usual(self) -> bool:
        return self._watch_all and self._num_recorded == 1

    @property
    def _usual_step(self) -> int | None:
        return usual_step(self._seen, is_last=True) if self._usual is None else self._usual

    @property
    def _seen(self) -> list[StepWork]:
        """The work of the steps of which all operators are noted, of the first one only those with a formula."""
        num_seen = None if self._watch_all or self._usual is None else self._usual + 1
        steps = self._recorder.steps[:num_seen]
        return [
            StepWork(step.flops, tuple((call.collective, call.size_bytes, call.group) for call in calls))
            for step, calls in zip(steps, map(_lasting_calls, range(len(steps)), steps), strict=True)
        ]

    def _is_idle(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer has not stepped, and is no wrapper that torch does not know."""
        return optimizer not in self._have_stepped and "_optimizer_step_post_hooks" in vars(optimizer)

    def _is_partial(self, optimizer: Optimizer) -> bool:
        """Whether this updates only other parameters than the last end of a step, as ZeRO does group by group."""
        updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        is_partial = len(self._ending) > 0 and not any(parameter in self._ending for parameter in updated)
        if not is_partial:
            self._ending = WeakIdKeyDictionary(dict.fromkeys(updated))
        return is_partial

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        self._have_stepped.add(optimizer)
        if self._optimizer is None or self._optimizer() is None:
            self._begin_with(optimizer)
        if self._optimizer is None or self._optimizer() is not optimizer or self._is_partial(optimizer):
            return
        if self.processes.is_forked:
            self.processes.refuse()
        if self._thread is not threading.current_thread():
            raise RuntimeError("the program steps its optimizer in several threads: record one that does so in one")
        if not self.is_complete:
            self._recorder.end_step()
            with self._recorder.stopped():
                self._begin_or_end_watch()
                if self.is_complete:
                    self._idle = {type(one).__name__ for one in all_of(Optimizer) if self._is_idle(one)}
        if self.is_complete:
            self._stop()

    def _begin_with(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        if self._thread is threading.current_thread():
            self._watch.memory.stop()
        else:
            self._watch.heeds = lambda _: False  # its thread alone can stop it
            self._thread, self._watch = threading.current_thread(), OperatorWatch(self._recorder)
        if self._watch_all and self._thread is not threading.main_thread():
            warn("tensors that are made in this thread have data and need memory, also with --fake")
        self._ending.clear()
        self._recorder.steps.clear()
        self._memories.clear()
        self._usual = None

    def _stop_watch(self) -> None:
        """Stop watching in this thread; another watching thread is about to end."""
        if self._watch.is_watching and self._thread is threading.current_thread():
            self._watch.stop()

    def _begin_or_end_watch(self) -> None:
        if len(self._recorder.steps) == FIRST_WATCHED:
            self._watch.heeds = lambda kind: kind.has_work
            if not self._watch.is_watching:
                self._watch.start()
        if self._usual is not None:
            return
        self._follow_buckets()
        ended = len(self._recorder.steps) - 1
        if ended < FIRST_WATCHED:
            return
        if ended >= FIRST_USUAL:
            self._watch.memory.stop()
            self._memories[ended] = self._watch.memory.memory
            self._find_usual(ended)
        if self._usual is None:
            self._watch.watch_memory()
        elif not self._watch_all:
            self._stop_watch()
            self._num_warm_up = ended + 1

    def _follow_buckets(self) -> None:
        """Let a step in which DistributedDataParallel has agreed on its buckets be the first watched one."""
        if any(model._has_rebuilt_buckets for model in self._awaited):
            self._watch.memory.stop()
            self._memories.clear()
            del self._recorder.steps[FIRST_WATCHED:-1]
        self._awaited = weakref.WeakSet(
            model
            for model in all_of(DistributedDataParallel)
            if (model.static_graph or not model.find_unused_parameters) and not model._has_rebuilt_buckets
        )

    def _find_usual(self, ended: int) -> None:
        is_last = ended == LAST_USUAL
        if self._awaited and not is_last:
            return
        if self._watch_all and self._num_recorded > 1:
            self._usual = self._num_warm_up = ended
        else:
            self._usual = usual_step(self._seen, is_last)

    def warn_of_others(self) -> None:
        """Warn if a step differs from the recorded ones, so that the program takes longer than the trace tells."""
        works, usual = self._seen, self._usual_step
        first, later = works[:FIRST_USUAL], works[FIRST_USUAL:]
        if usual is not None and len(set(later)) > 1 and not (self._watch_all and self._num_recorded > 1):
            told = [f"{_tflop(work.flops)} with {plural(len(work.calls), 'call')}" for work in works]
            warn(
                f"steps differ, as with a validation in some or random sizes: {', '.join(told[FIRST_USUAL:])}; "
                f"operators and memory are of one with {told[usual]}; --steps N records N steps as they come"
            )
        most, most_later = (max((work.flops for work in some), default=0) for some in (first, later))
        if most > MORE_WORK * most_later > 0:
            warn(
                f"one of the first two steps, with what precedes it, has {_tflop(most)}, and no later one more than "
                f"{_tflop(most_later)}: if that recurs, as a rollout or a validation does, {GIVE_STEPS}"
            )
        for name in self._idle:
            warn(f"an optimizer, {name}, has made no step so far: if it makes one every few steps, {GIVE_STEPS}")

    def _stop(self) -> NoReturn:
        self._stop_watch()
        self._stops += 1
        if threading.current_thread() is not threading.main_thread():
            if self._stops == 1:  # what the main thread waits for may never come
                signal.pthread_kill(threading.main_thread().ident or 0, _interrupting())
            raise SystemExit  # which ends a thread silently
        if self._stops > MAX_STOPS:
            problem = "it catches BaseException in each step, and so cannot be stopped: let it catch Exception"
            self._give_up(f"{sys.argv[0]}: {problem}")
        raise StopRecordingError


def _lasting_calls(index: int, step: TracedStep) -> list[TraceCall]:
    """Return the calls of a step without those by which DistributedDataParallel agrees on its buckets."""
    return [call for call in step.calls if index != FIRST_WATCHED or (call.collective, call.dtype) != _AGREEING]


def _tflop(flops: int) -> str:
    return f"{flops / 1e12:.4g} TFLOP"


def usual_step(steps: Sequence[StepWork], is_last: bool) -> int | None:
    """Return the index of a usual step, once one has the same work as another watched one; until then None.

    Of equally frequent steps, those without validation have the fewest operations, and few calls.

    is_last: no more steps follow; if all numbers differ, return the median step.
    """
    may_be, counts = steps[FIRST_USUAL:], Counter(steps[FIRST_WATCHED:])
    if not any(counts[work] > 1 or is_last for work in may_be):
        return None
    frequencies = Counter(work.flops for work in steps[FIRST_WATCHED:])
    most = max(frequencies[work.flops] for work in may_be)
    frequent = [work for work in may_be if frequencies[work.flops] == most]
    usual = median_low(may_be) if most == 1 else min(frequent, key=lambda work: (work.flops, len(work.calls)))
    return steps.index(usual, FIRST_USUAL)
