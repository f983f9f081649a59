"""`StepCounter`: ends a recorded step at each optimizer step, and the program at the last one."""

import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from mmap import mmap
from typing import Any, NoReturn, Self

import torch
from torch import multiprocessing
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from collectives.recording.operators import OperatorWatch
from collectives.recording.recorder import Recorder
from ringsim.traces import StepMemory, TracedStep
from ringsim.units import plural

# In the first step the optimizer allocates its state, and in the second DistributedDataParallel agrees on its buckets.
# The third one makes the same calls as all later ones, so its operators are watched; if none is timed, it is recorded.
WARM_UP_STEPS = 3
WATCHED_STEP = WARM_UP_STEPS - 1
MAX_STOPS = 10  # that a program may catch


class EnoughError(BaseException):
    """Stops the program: all steps are recorded."""


class ForkedProcesses:
    """The processes that the program forks, to load data or to log, but not to train.

    have_trained: whether an optimizer has made a step in one of them; known in all of them.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._shared = mmap(-1, 1)

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._pid

    @property
    def have_trained(self) -> bool:
        return self._shared[0] > 0

    def refuse_training(self) -> NoReturn:
        """End this forked process; its parent reports the error."""
        self._shared[0] = 1
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

    If that optimizer is gone when another one steps, it was a trial, and its steps are discarded.

    watch_all: watch the operators of all steps after the warm-up, since none is timed.
    give_up: ends the process with a message, if the program catches every exception.
    """

    def __init__(
        self, recorder: Recorder, num_recorded: int, watch_all: bool, give_up: Callable[[str], object]
    ) -> None:
        self._recorder, self._watch_all, self._give_up = recorder, watch_all, give_up
        self._num_warm_up = WATCHED_STEP if watch_all else WARM_UP_STEPS
        self._num_steps = self._num_warm_up + num_recorded
        self._watch = OperatorWatch(recorder)
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._stops = 0
        self.processes = ForkedProcesses()

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._stepped)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
        self._stop_watch()  # the program ended or failed meanwhile

    def __str__(self) -> str:
        return f"{plural(len(self._recorder.steps), 'step')} of a torch.optim.Optimizer; {self._num_warm_up} warm up"

    @property
    def is_complete(self) -> bool:
        return len(self._recorder.steps) == self._num_steps

    @property
    def recorded(self) -> tuple[TracedStep, ...]:
        return tuple(self._recorder.steps[self._num_warm_up :])

    @property
    def watched(self) -> list[TracedStep]:
        return self._recorder.steps[WATCHED_STEP : WATCHED_STEP + 1]

    @property
    def memory(self) -> StepMemory | None:
        return self._watch.memory.memory

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if self._optimizer is None or self._optimizer() is None:
            self._begin_with(optimizer)
        if self._optimizer is None or self._optimizer() is not optimizer:
            return
        if self.processes.is_forked:
            self.processes.refuse_training()
        if self._thread is not threading.current_thread():
            raise RuntimeError("the program steps its optimizer in several threads: record one that does so in one")
        if not self.is_complete:
            self._recorder.end_step()
            with self._recorder.stopped():
                self._begin_or_end_watch()
        if self.is_complete:
            self._stop()

    def _begin_with(self, optimizer: Optimizer) -> None:
        self._optimizer, self._thread = weakref.ref(optimizer), threading.current_thread()
        if self._watch_all and self._thread is not threading.main_thread():
            warnings.warn(
                "tensors that are made in this thread have data and need memory, also with --fake", stacklevel=4
            )
        self._recorder.steps.clear()
        self._stop_watch()

    def _stop_watch(self) -> None:
        """Stop watching in this thread; another watching thread is about to end."""
        if self._watch.is_watching and self._thread is threading.current_thread():
            self._watch.stop()

    def _begin_or_end_watch(self) -> None:
        if len(self._recorder.steps) == WATCHED_STEP:
            self._watch.start()
        elif len(self._recorder.steps) == WATCHED_STEP + 1:
            self._watch.memory.stop()
            if not self._watch_all:
                self._stop_watch()

    def _stop(self) -> NoReturn:
        self._stop_watch()
        self._stops += 1
        if threading.current_thread() is not threading.main_thread():
            if self._stops == 1:  # what the main thread waits for may never come
                is_handled = callable(signal.getsignal(signal.SIGTERM))
                main = threading.main_thread().ident or 0
                signal.pthread_kill(main, signal.SIGTERM if is_handled else signal.SIGINT)
            raise SystemExit  # which ends a thread silently
        if self._stops > MAX_STOPS:
            problem = "it catches BaseException in each step, and so cannot be stopped: let it catch Exception"
            self._give_up(f"{sys.argv[0]}: {problem}")
        raise EnoughError
