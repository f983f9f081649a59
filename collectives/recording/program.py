"""`record_program`: run an unchanged script once, in this process, as one rank of a job, and record its steps."""

import os
import runpy
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from msgspec.structs import replace
from torch import multiprocessing
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.distributed import rpc

from collectives.recording.fake import without_data
from collectives.recording.group import recording
from collectives.recording.pretended_cuda import hidden_cuda, pretended_cuda
from collectives.recording.recorder import Recorder, StreamMoment
from collectives.recording.step_counter import EnoughError, StepCounter
from ringsim import traces
from ringsim.measurements import provenance


@contextmanager
def watched_streams(recorder: Recorder, device: Any) -> Iterator[None]:
    """Tell the recorder each wait of the program's streams within the block.

    device: torch.cuda, or torch.cpu with its placeholders: classes Stream and Event, and current_stream(). Methods of
    streams are implemented by methods of events, as in torch.cuda.
    """
    marks: WeakKeyDictionary[Any, StreamMoment] = WeakKeyDictionary()
    record, wait = device.Event.record, device.Event.wait

    def record_on(event: Any, stream: Any = None) -> None:
        stream = device.current_stream() if stream is None else stream
        marks[event] = recorder.mark(stream)
        record(event, stream)

    def wait_on(event: Any, stream: Any = None) -> None:
        stream = device.current_stream() if stream is None else stream
        if event in marks:
            recorder.wait_for(marks[event], stream)
        wait(event, stream)

    def record_event(stream: Any, event: Any = None) -> Any:
        event = device.Event() if event is None else event
        event.record(stream)
        return event

    def wait_event(stream: Any, event: Any) -> None:
        if event is not None:  # placeholders accept None
            event.wait(stream)

    def wait_stream(stream: Any, other: Any) -> None:
        stream.wait_event(other.record_event())

    of_streams: dict[str, Any] = {"record_event": record_event, "wait_event": wait_event, "wait_stream": wait_stream}
    with patch.multiple(device.Event, record=record_on, wait=wait_on), patch.multiple(device.Stream, **of_streams):
        yield


EAGER_BACKENDS = ("eager", "aot_eager")  # of torch.compile: they run the operators as they are
_OF_BOTH = (traces.TraceEventKind.CALL, traces.TraceEventKind.WAIT)


class ProgramError(ValueError):
    """A program that cannot be recorded; the message has the place and the reason in one line."""


def record_program(request: traces.TraceRequest, give_up: Callable[[str], object] = sys.exit) -> traces.ProgramTrace:
    """Run the program until it has made the requested number of steps, and return them.

    give_up: ends the process with a message.

    Raises ProgramError if the program fails, ends before its first recorded step, or starts its own ranks.
    """
    recorder = Recorder(lambda: 0.0) if request.is_fake else Recorder()  # without data nothing is computed
    groups: list[traces.Group] = []
    failures: list[Any] = []  # of the program's threads
    compiled: list[str] = []
    counter = StepCounter(recorder, request.num_steps, request.is_fake, give_up)
    with (
        recording(request.num_ranks, request.rank, recorder, groups),
        _as_started_by_torchrun(request),
        _without_compilers(compiled),
        without_data() if request.is_fake else nullcontext(),
        pretended_cuda(request.ranks_here) if request.device is traces.Device.CUDA else hidden_cuda(),
        watched_streams(recorder, torch.cpu),
        watched_streams(recorder, torch.cuda),
        counter,
        patch.object(threading, "excepthook", failures.append),
    ):
        try:
            _run(request)
        except EnoughError:
            pass
        except ProgramError:
            if not counter.is_complete:  # else the program reports that it was stopped
                raise
        except KeyboardInterrupt:
            if not counter.is_complete:  # else another thread has stopped this one
                raise KeyboardInterrupt(f"interrupted after {counter}; no trace is written") from None
        finally:
            counter.processes.end_if_forked(sys.exc_info()[1])
            counter.processes.end_children()
            if failures and not counter.recorded:  # perhaps the reason why this thread has failed or hung
                raise _told(failures[0].exc_value, request)
    for failure in failures:
        threading.__excepthook__(failure)
    _require_steps(counter, request)
    steps = counter.recorded
    if not request.is_fake:
        steps = tuple(with_times_of(step, *counter.watched) for step in steps)
    place = request.num_ranks, request.rank, request.ranks_here, tuple(groups)
    origin = {**provenance(), "torch": torch.__version__}
    return traces.ProgramTrace(*place, steps, origin, request, counter.memory, is_compiled=bool(compiled))


def _require_steps(counter: StepCounter, request: traces.TraceRequest) -> None:
    if counter.recorded:
        return
    if counter.processes.have_trained:
        _refuse_processes()
    asks = "" if request.device is traces.Device.CUDA else "; if it asks for GPUs first, give --device cuda"
    raise ProgramError(
        f"{request.program}: it ended after {counter}, and at least one more is recorded: let it make more{asks}"
    )


def _run(request: traces.TraceRequest) -> None:
    """Run the program, and join its threads as Python does."""
    try:
        if request.is_module:
            runpy.run_module(request.program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(request.program, run_name="__main__")
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise ProgramError(f"{request.program}: it ended with exit code {ended.code}") from None
    except Exception as error:
        raise _told(error, request) from error


def _told(error: BaseException, request: traces.TraceRequest) -> ProgramError:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if request.is_own(frame.filename)]
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else request.program  # the innermost line of its own
    if isinstance(error, ProgramError):
        return ProgramError(f"{place}: {error}")
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return ProgramError(
            f"{place}: {error.func} needs real numbers, and with --fake there are none: "
            "leave it out there, or record without --fake"
        )
    advice = ""
    if any("pipelining" in Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__)):
        advice = "; a recorded rank has no peers, and so pipelines, whose ranks do different things, cannot be recorded"
    elif request.device is traces.Device.CPU and any(word in str(error).lower() for word in ("cuda", "accelerator")):
        advice = "; a program that was written for GPUs needs --device cuda"
    return ProgramError(f"{place}: {type(error).__name__}: {str(error).rstrip('.') if advice else error}{advice}")


@contextmanager
def _as_started_by_torchrun(request: traces.TraceRequest) -> Iterator[None]:
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
        "TORCHELASTIC_RUN_ID": traces.RECORDING_ID,
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
        yield


@contextmanager
def _without_compilers(compiled: list[str]) -> Iterator[None]:
    """Make torch.compile only warn within the block, as fused operators cannot be watched.

    TorchScript continues; its operators can be watched, though a GPU would fuse them.

    compiled: gets the name of each backend that would fuse operators.
    """

    def scripted(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            compiled.append("TorchScript")
            return call(*args, **options)

        return noted

    def stay_eager(model: Any = None, *, backend: Any = "inductor", disable: bool = False, **_: Any) -> Any:
        if not disable and backend not in EAGER_BACKENDS:
            compiled.append(str(backend))
            message = "torch.compile does nothing while a program is recorded: the step is that of eager mode"
            warnings.warn(message, stacklevel=2)
        return (lambda function: function) if model is None else model

    with (
        patch.object(torch, "compile", stay_eager),
        patch.object(torch._dynamo, "optimize", lambda backend="inductor", **rest: stay_eager(backend=backend, **rest)),
        patch.object(torch._C.ScriptFunction, "__call__", scripted(torch._C.ScriptFunction.__call__)),
        patch.object(torch._C.ScriptMethod, "__call__", scripted(torch._C.ScriptMethod.__call__)),
    ):
        yield


def _refuse_processes(*_: object, **__: object) -> NoReturn:
    raise ProgramError("the program starts its ranks itself, by torch.multiprocessing: record one that torchrun starts")


def _refuse_rpc(*_: object, **__: object) -> NoReturn:
    raise ProgramError("the program calls other ranks by torch.distributed.rpc, and a recorded rank has none")


def with_times_of(timed: traces.TracedStep, watched: traces.TracedStep) -> traces.TracedStep:
    """Return the watched step with the times of a timed step; the timed one if their calls differ.

    Watching takes as long as a small operator, so a watched step has no valid times. Where a READ divides the computing
    between two calls or waits of the watched step, the timed step's time is divided in proportion.
    """
    if _skeleton(timed) != _skeleton(watched):
        return timed
    timed_s, watched_s = _computing_s(timed), _computing_s(watched)
    stretch = 0
    events: list[traces.TraceEvent] = []
    for event in watched.events:
        seconds = 0.0
        if event.kind in _OF_BOTH:
            stretch += 1
        elif event.seconds:
            seconds = timed_s[stretch] * event.seconds / watched_s[stretch]
        events.append(replace(event, seconds=seconds))
    calls = [replace(call, after=seen.after) for call, seen in zip(timed.calls, watched.calls, strict=True)]
    return traces.TracedStep(tuple(events), tuple(calls))


def _skeleton(step: traces.TracedStep) -> tuple[list[tuple[traces.TraceEventKind, int]], list[traces.TraceCall]]:
    """Return the calls and waits of a step, which do not depend on watching."""
    events = [(event.kind, event.call) for event in step.events if event.kind in _OF_BOTH]
    return events, [replace(call, local_s=0.0, after=None) for call in step.calls]


def _computing_s(step: traces.TracedStep) -> list[float]:
    """Return the seconds of computing before each call or wait, and after the last."""
    stretches_s = [0.0]
    for event in step.events:
        if event.kind in _OF_BOTH:
            stretches_s.append(0.0)
        else:
            stretches_s[-1] += event.seconds
    return stretches_s
