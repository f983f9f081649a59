"""`record_program`: run a script once, unchanged, in this process, as one rank of a job, and record its steps."""

import os
import runpy
import sys
import traceback
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from mmap import mmap
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch import multiprocessing
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.distributed import rpc
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from collectives.recording.fake import without_data
from collectives.recording.group import recording
from collectives.recording.operators import OperatorWatch
from collectives.recording.pretended_cuda import hidden_cuda, pretended_cuda
from collectives.recording.streams import watched_streams
from collectives.recording.watched_step import with_times_of
from collectives.runtime import Recorder
from ringsim.measurements import provenance
from ringsim.traces import RECORDING_ID, Device, Group, ProgramTrace, TraceRequest
from ringsim.units import plural

# In the first step the optimizer allocates its state, and in the second DistributedDataParallel agrees on its buckets.
# The third makes the calls of all that follow, so its operators are watched.
WARM_UP_STEPS = 3
WATCHED_STEP = WARM_UP_STEPS - 1
MAX_STOPS = 10  # so often a program may catch what stops it


USER_MISTAKE = 2  # the exit code


class ProgramError(ValueError):
    """A program that cannot be recorded; the message says where and why, in one line."""


class _EnoughError(BaseException):
    """Stops the program: all steps are recorded."""


def record_program(request: TraceRequest) -> ProgramTrace:
    """Run the program until it has made as many steps as are asked for, and return them.

    Raises ProgramError, in one line, if it fails, ends before the first step is over, or starts processes of its own.
    """
    recorder = Recorder(_no_time) if request.is_fake else Recorder()
    num_steps = WARM_UP_STEPS + request.num_steps
    groups: list[Group] = []
    processes = _Processes()
    with (
        recording(request.num_ranks, request.rank, recorder, groups),
        _as_started_by_torchrun(request),
        without_data() if request.is_fake else nullcontext(),
        pretended_cuda(request.ranks_here) if request.device is Device.CUDA else hidden_cuda(),
        watched_streams(recorder, torch.cpu),
        watched_streams(recorder, torch.cuda),
        _steps_counted(recorder, num_steps, request.is_fake, processes) as watch,
        suppress(_EnoughError),
    ):
        try:
            _run(request)
        except ProgramError:
            if len(recorder.steps) < num_steps:  # else the program only says that it was stopped
                raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted after {_steps_of(recorder)}; no trace is written") from None
        processes.end_if_forked()
    processes.end_children()
    watched = recorder.steps[WATCHED_STEP : WATCHED_STEP + 1]
    steps = tuple(recorder.steps[WARM_UP_STEPS:])
    if not request.is_fake:
        steps = tuple(with_times_of(step, *watched) for step in steps)
    if not steps and processes.have_trained:
        _refuse_processes()
    if not steps:
        asks = "" if request.device is Device.CUDA else "; if it asks for GPUs first, give --device cuda"
        raise ProgramError(
            f"{request.program}: it ended after {_steps_of(recorder)}, and at least one more is recorded: "
            f"let it make more{asks}"
        )
    return ProgramTrace(
        request.num_ranks,
        request.rank,
        request.ranks_here,
        tuple(groups),
        steps,
        {**provenance(), "torch": torch.__version__},
        request,
        watch.memory.memory,
    )


def _steps_of(recorder: Recorder) -> str:
    return f"{plural(len(recorder.steps), 'step')} of a torch.optim.Optimizer; {WARM_UP_STEPS} warm up"


class _Processes:
    """The processes that the program forks: such as load data or log, but do not train.

    have_trained: whether an optimizer has made a step in one of them, which all of them can tell.
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
        """End this process, a forked one that trains, and let the program's own one say so."""
        self._shared[0] = 1
        os._exit(1)

    def end_if_forked(self) -> None:
        """End a process that was forked and has come to the program's end: it has no trace to write."""
        if self.is_forked:
            sys.stdout.flush()
            os._exit(0)

    def end_children(self) -> None:
        """End those that the program would have told to end, had it not been stopped."""
        for process in multiprocessing.active_children():
            process.terminate()


def _no_time() -> float:
    """Return the time for a program that computes nothing."""
    return 0.0


def _run(request: TraceRequest) -> None:
    try:
        if request.is_module:
            runpy.run_module(request.program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(request.program, run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise ProgramError(f"{request.program}: it ended with exit code {ended.code}") from None
    except ProgramError as error:
        raise ProgramError(f"{_place_of(error, request)}: {error}") from error
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ProgramError(
            f"{_place_of(error, request)}: {error.func} needs real numbers, and with --fake there are none: "
            "leave it out there, or record without --fake"
        ) from error
    except Exception as error:
        wants_cuda = request.device is Device.CPU and any(
            word in str(error).lower() for word in ("cuda", "accelerator")
        )
        advice = "; a program that was written for GPUs needs --device cuda" if wants_cuda else ""
        raise ProgramError(f"{_place_of(error, request)}: {type(error).__name__}: {error}{advice}") from error


def _place_of(error: Exception, request: TraceRequest) -> str:
    """Return the innermost line of the program's own that failed, or the program's name."""
    own = str(Path(request.program).resolve().parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and str(Path(frame.filename).resolve()).startswith(own)
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames and not request.is_module else request.program


@contextmanager
def _as_started_by_torchrun(request: TraceRequest) -> Iterator[None]:
    """Set what torchrun sets for a rank: environment, sys.argv and the path of the script's folder."""
    per_host = request.ranks_here
    host, local_rank = divmod(request.rank, per_host)
    environment = {
        "RANK": request.rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": request.num_ranks,
        "LOCAL_WORLD_SIZE": per_host,
        "GROUP_RANK": host,
        "GROUP_WORLD_SIZE": -(-request.num_ranks // per_host),
        "ROLE_RANK": request.rank,
        "ROLE_WORLD_SIZE": request.num_ranks,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": RECORDING_ID,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    folder = os.getcwd() if request.is_module else str(Path(request.program).resolve().parent)
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {name: str(value) for name, value in environment.items()}))
        stack.enter_context(patch.object(sys, "argv", [request.program, *request.arguments]))
        stack.enter_context(patch.object(sys, "path", [folder, *sys.path]))
        for name in ("spawn", "start_processes"):
            stack.enter_context(patch.object(multiprocessing, name, _refuse_processes))
        stack.enter_context(patch.object(rpc, "init_rpc", _refuse_rpc))
        stack.enter_context(patch.object(torch, "compile", _stay_eager))
        yield


def _stay_eager(model: Any = None, **_: Any) -> Any:
    """Return what torch.compile is given, or as a decorator a function that does; warn of it once.

    Operators that are compiled together could be seen no longer.
    """
    message = "torch.compile does nothing while a program is recorded: the step is that of eager mode"
    warnings.warn(message, stacklevel=2)
    return (lambda function: function) if model is None else model


def _refuse_processes(*_: object, **__: object) -> NoReturn:
    raise ProgramError("the program starts its ranks itself, by torch.multiprocessing: record one that torchrun starts")


def _refuse_rpc(*_: object, **__: object) -> NoReturn:
    raise ProgramError("the program calls other ranks by torch.distributed.rpc, and a recorded rank has none")


@contextmanager
def _steps_counted(
    recorder: Recorder, num_steps: int, watch_all: bool, processes: _Processes
) -> Iterator[OperatorWatch]:
    """End a recorded step with each step of the optimizer that steps first, and the program after `num_steps`.

    An optimizer that is gone when another one steps was on trial, and its steps are forgotten; unless it has made all
    that were to be recorded, when nobody knows of another one.

    watch_all: the operators of all steps are watched, once they have warmed up, since none is timed.
    """
    first: list[weakref.ref[Optimizer]] = []
    watch = OperatorWatch(recorder)
    stops = 0

    def stop() -> NoReturn:
        nonlocal stops
        stops += 1
        if stops > MAX_STOPS:
            print(  # noqa: T201  no exception would get out
                f"ringsim trace: {sys.argv[0]}: it catches BaseException in each step, and so cannot be stopped: "
                "let it catch Exception",
                file=sys.stderr,
                flush=True,
            )
            os._exit(USER_MISTAKE)
        raise _EnoughError

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        if not first or first[0]() is None:
            first[:] = [weakref.ref(optimizer)]
            recorder.steps.clear()
            if watch.is_watching:
                watch.stop()
        if first[0]() is not optimizer:
            return
        if processes.is_forked:
            processes.refuse_training()
        if len(recorder.steps) == num_steps:  # it was stopped already
            stop()
        recorder.end_step()
        with recorder.stopped():
            if len(recorder.steps) == WATCHED_STEP:
                watch.start()
            elif len(recorder.steps) == WATCHED_STEP + 1:
                watch.memory.stop()
                if not watch_all:
                    watch.stop()
        if len(recorder.steps) == num_steps:
            stop()

    handle = register_optimizer_step_post_hook(stepped)
    try:
        yield watch
    finally:
        handle.remove()
        if watch.is_watching:  # the program ended or failed meanwhile, or is watched to the end
            watch.stop()
