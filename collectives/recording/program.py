"""`record_program`: run a script once, unchanged, in this process, as one rank of a job, and record its steps."""

import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch import multiprocessing
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.distributed import rpc

from collectives.recording.fake import without_data
from collectives.recording.group import recording
from collectives.recording.pretended_cuda import hidden_cuda, pretended_cuda
from collectives.recording.step_counter import EnoughError, StepCounter
from collectives.recording.streams import watched_streams
from collectives.recording.watched_step import with_times_of
from collectives.runtime import Recorder
from ringsim.measurements import provenance
from ringsim.traces import RECORDING_ID, Device, Group, ProgramTrace, TraceRequest


class ProgramError(ValueError):
    """A program that cannot be recorded; the message says where and why, in one line."""


def record_program(request: TraceRequest) -> ProgramTrace:
    """Run the program until it has made as many steps as are asked for, and return them.

    Raises ProgramError, in one line, if it fails, ends before the first step is over, or starts its own processes.
    """
    recorder = Recorder(_no_time) if request.is_fake else Recorder()
    groups: list[Group] = []
    counter = StepCounter(recorder, request.num_steps, watch_all=request.is_fake)
    with (
        recording(request.num_ranks, request.rank, recorder, groups),
        _as_started_by_torchrun(request),
        without_data() if request.is_fake else nullcontext(),
        pretended_cuda(request.ranks_here) if request.device is Device.CUDA else hidden_cuda(),
        watched_streams(recorder, torch.cpu),
        watched_streams(recorder, torch.cuda),
        counter,
        suppress(EnoughError),
    ):
        try:
            _run(request)
        except ProgramError:
            if not counter.is_complete:  # else the program only says that it was stopped
                raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted after {counter}; no trace is written") from None
        counter.processes.end_if_forked()
    counter.processes.end_children()
    _require_steps(counter, request)
    steps = counter.recorded
    if not request.is_fake:
        steps = tuple(with_times_of(step, *counter.watched) for step in steps)
    return ProgramTrace(
        request.num_ranks,
        request.rank,
        request.ranks_here,
        tuple(groups),
        steps,
        {**provenance(), "torch": torch.__version__},
        request,
        counter.memory,
    )


def _require_steps(counter: StepCounter, request: TraceRequest) -> None:
    """Raise ProgramError if no step was recorded."""
    if counter.recorded:
        return
    if counter.processes.have_trained:
        _refuse_processes()
    asks = "" if request.device is Device.CUDA else "; if it asks for GPUs first, give --device cuda"
    raise ProgramError(
        f"{request.program}: it ended after {counter}, and at least one more is recorded: let it make more{asks}"
    )


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
