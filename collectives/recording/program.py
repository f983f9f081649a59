"""`record_program`: run an unchanged script once, in this process, as one rank of a job, and record its steps."""

import os
import runpy
import sys
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import accumulate
from multiprocessing.context import ForkProcess
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from msgspec.structs import replace
from torch import distributed
from torch.distributed.checkpoint.api import CheckpointException

from collectives.recording.compiled import compiling, not_compiling, noting_scripts
from collectives.recording.fake import without_data
from collectives.recording.group import recording
from collectives.recording.operators import kernels_of_triton
from collectives.recording.pretended_cuda import hidden_cuda, pretended_cuda
from collectives.recording.recorder import Recorder, StreamMoment
from collectives.recording.replacements import changed, replaced, returning, run_within, warn
from collectives.recording.saved import SAVED
from collectives.recording.step_counter import GIVE_STEPS, ForkedProcesses, StepCounter, StopRecordingError
from collectives.recording.without_values import NEEDING_VALUES, READ_AT, forget_written
from ringsim import traces
from ringsim.measurements import provenance
from ringsim.units import plural


@contextmanager
def watched_streams(recorder: Recorder, device: Any) -> Iterator[None]:
    """Tell the recorder each wait of the program's streams within the block.

    device: torch.cuda, or torch.cpu with its placeholders, in which methods of streams call methods of events.
    """
    marks: WeakKeyDictionary[Any, StreamMoment] = WeakKeyDictionary()
    record, wait, finish = device.Event.record, device.Event.wait, device.synchronize

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

    def synchronize(event: Any) -> None:
        if event in marks:
            recorder.synchronize(marks[event])

    def synchronize_all(*given: Any, **options: Any) -> None:
        recorder.synchronize()
        finish(*given, **options)  # which refuses a program that has no GPU

    of_streams: dict[str, Any] = {"record_event": record_event, "wait_event": wait_event, "wait_stream": wait_stream}
    with (
        patch.multiple(device.Event, record=record_on, wait=wait_on, synchronize=synchronize),
        patch.multiple(device.Stream, create=True, synchronize=lambda _: recorder.synchronize(), **of_streams),
        patch.object(device, "synchronize", synchronize_all),
    ):
        yield


_NO_VALUES = (
    "with --fake there are none: leave it out there, give --assume balanced if a router of experts causes it, or "
    "record without --fake"
)
_SINGLE_RANKS = (
    "the program sends to single ranks, as pipelines do: ringsim step will refuse this trace, since the recording of "
    "one rank does not tell what the others do"
)
_ALGORITHMS = "torch.distributed.algorithms"
_AFTER_WARM_UP = {
    f"{_ALGORITHMS}.model_averaging.averagers.ModelAverager.__init__": "the program averages its parameters every few "
    "steps, after a warm-up: give a --steps that contains both",
    f"{_ALGORITHMS}.ddp_comm_hooks.powerSGD_hook.PowerSGDState.__init__": "the program uses PowerSGD after a warm-up: "
    "give a --steps that contains later steps, and a smaller start_powerSGD_iter if that takes long",
}
_FIND_SHAPES = "torch.distributed.tensor._sharding_prop.ShardingPropagator._propagate_tensor_meta_non_cached"
_FORK = staticmethod(ForkProcess._Popen)
_OF_BOTH = (traces.TraceEventKind.CALL, traces.TraceEventKind.WAIT)


class ProgramError(ValueError):
    """A program that cannot be recorded; the message has the place and the reason in one line."""


def record_program(request: traces.TraceRequest, give_up: Callable[[str], object] = sys.exit) -> traces.ProgramTrace:
    """Run the program for the requested number of steps, and return them.

    give_up: ends the process with a message.

    Raises ProgramError if the program fails, ends before its first recorded step, or starts its own ranks.
    """
    recorder = Recorder(lambda: 0.0) if request.is_fake else Recorder()  # without data nothing is computed
    groups: list[traces.Group] = []
    failures: list[ProgramError] = []  # of the program's threads
    in_eager_mode: list[str] = []  # what is not recorded as it is compiled
    refusals: list[Exception] = []  # for want of data, which the program may catch
    formatted: deque[ProgramError] = deque(maxlen=1)  # whose traceback the program logs, prints or sends away
    counter = StepCounter(recorder, request.num_steps, request.is_fake, give_up)
    with (
        recording(request.num_ranks, request.rank, recorder, groups, counter.processes.leave_rank),
        replaced(counter.processes.replacements()),
        replaced(changed(name, _warning(told)) for name, told in _AFTER_WARM_UP.items() if request.num_steps == 1),
        _as_started_by_torchrun(request),
        noting_scripts(in_eager_mode),
        compiling(recorder, in_eager_mode) if request.is_fake else not_compiling(in_eager_mode),
        # DTensor finds the shapes of results by operators on tensors of the whole shape.
        replaced(run_within(recorder.stopped, _FIND_SHAPES)),
        without_data(recorder.stopped, refusals, request.assume is not None) if request.is_fake else nullcontext(),
        replaced(kernels_of_triton(recorder, forget_written) if request.is_fake else ()),
        pretended_cuda(request.ranks_here, request.is_fake) if request.device is traces.Device.CUDA else hidden_cuda(),
        watched_streams(recorder, torch.cpu),
        watched_streams(recorder, torch.cuda),
        counter,
        _noting_failures(failures, lambda error: _told(error, request, recorder)),
        _noting_formatted(lambda error: formatted.append(_told(error, request, recorder))),
    ):
        try:
            _run(request, recorder, counter.processes)
        except StopRecordingError:
            pass
        except ProgramError as error:
            # Else the program reports that it was stopped, or that its processes have ended.
            if not (counter.is_complete or counter.processes.are_ranks):
                before = (
                    f"; before, it had caught {one}"
                    for one in formatted
                    if str(one).partition(": ")[2] not in str(error) and ModuleNotFoundError.__name__ not in str(one)
                )
                error.args = ("".join([str(error), *before]),)
                raise
        except KeyboardInterrupt:
            if not (counter.is_complete or counter.processes.are_ranks):  # else the recorder has stopped this thread
                raise KeyboardInterrupt(f"interrupted after {counter}; no trace is written") from None
        finally:
            counter.processes.end_if_forked(sys.exc_info()[1])
            counter.processes.end_children()
            is_known = counter.recorded or counter.processes.are_ranks
            if failures and not is_known:  # perhaps the reason why this thread has failed or hung
                raise failures[0]
    _require_steps(counter, request, [*(_told(refusal, request, recorder) for refusal in refusals), *formatted])
    counter.warn_of_others()
    steps = counter.recorded
    if any(call.collective in ("send", "recv") for step in steps for call in step.calls):
        warn(_SINGLE_RANKS)
    if request.num_ranks > 1 and not any(step.calls for step in steps):
        warn(f"the ranks do not communicate in the recorded step: if they do every few steps, {GIVE_STEPS}")
    if not request.is_fake:
        steps = tuple(with_times_of(step, *counter.watched) for step in steps)
    place = request.num_ranks, request.rank, request.ranks_here, tuple(groups)
    origin = {**provenance(), "torch": torch.__version__}
    return traces.ProgramTrace(*place, steps, origin, request, counter.memory, is_compiled=bool(in_eager_mode))


def _require_steps(counter: StepCounter, request: traces.TraceRequest, caught: list[ProgramError]) -> None:
    if counter.recorded:
        return
    if counter.processes.are_ranks:
        raise ProgramError("the program starts its ranks itself, by multiprocessing: let torchrun start them")
    if caught:
        raise ProgramError(f"{request.program}: it ended after {counter}, and has caught an error: {caught[0]}")
    asks = "" if request.device is traces.Device.CUDA else "; if it asks for GPUs first, give --device cuda"
    raise ProgramError(
        f"{request.program}: it ended after {counter}, and at least one more is recorded: let it make more{asks}"
    )


def _noting_failures(failures: list[ProgramError], tell: Callable[[BaseException], ProgramError]) -> Any:
    """Return a context that notes the failures of threads, and warns of each at once: the main thread may wait."""

    def note(arguments: Any) -> None:
        failure = tell(arguments.exc_value)
        if arguments.exc_type is not SystemExit and str(failure) not in map(str, failures):
            failures.append(failure)
            warn(f"a thread of the program has failed: {failure}")

    return patch.object(threading, "excepthook", note)


def _noting_formatted(note: Callable[[Exception], object]) -> Any:
    """Return a context that notes errors whose traceback is formatted, and before an error those in its chain."""
    make = traceback.TracebackException.__init__

    def noted(self: Any, kind: Any, error: Any, *args: Any, **options: Any) -> None:
        make(self, kind, error, *args, **options)
        if isinstance(error, Exception):
            note(error)

    return patch.object(traceback.TracebackException, "__init__", noted)


def _run(request: traces.TraceRequest, recorder: Recorder, processes: ForkedProcesses) -> None:
    try:
        if request.is_module:
            runpy.run_module(request.program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(request.program, run_name="__main__")
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
        if not recorder.steps:
            processes.join()
    except SystemExit as ended:
        if ended.code not in (None, 0):
            cause = f" after {_told(ended.__context__, request, recorder)}" if ended.__context__ else ""
            raise ProgramError(f"{request.program}: it ended with exit code {ended.code}{cause}") from None
    except (StopRecordingError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also torch's CheckpointException
        raise _told(error, request, recorder) from error


def _told(error: BaseException, request: traces.TraceRequest, recorder: Recorder) -> ProgramError:
    chain = [error]
    while chain[-1].__context__ is not None:
        chain.append(chain[-1].__context__)
    if isinstance(error, CheckpointException):
        cause, _ = next(iter(error.failures.values()))
        error = cause.with_traceback(error.__traceback__)
    error = next((cause for cause in chain if isinstance(cause, NEEDING_VALUES)), error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if request.is_own(frame.filename)]
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else request.program  # the innermost line of its own
    if isinstance(error, ProgramError):
        return ProgramError(f"{place}: {error}")
    if isinstance(error, NEEDING_VALUES):
        return ProgramError(f"{place}: {error.func} needs real numbers, and {_NO_VALUES}")
    advice = _advice_for(error, any(isinstance(cause, UnpicklingError) for cause in chain), request, recorder)
    line = frames[-1].line or "" if frames else ""
    text = str(error).partition(" This could be because ")[0] or line  # torch then lists all of its kernels
    return ProgramError(f"{place}: {type(error).__name__}: {text.rstrip('.') if advice else text}{advice}")


def _advice_for(error: BaseException, is_of_pickle: bool, request: traces.TraceRequest, recorder: Recorder) -> str:
    """Return the end of the line that tells an error: the reason if recording causes it, and what to do."""
    advice = ""
    paths = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    in_pipeline = any("pipelining" in path.parts for path in paths)
    if in_pipeline or (recorder.has_received and not isinstance(error, NameError | ImportError | OSError)):
        advice = "; a recorded rank has no peers, and so pipelines, whose ranks do different things, cannot be recorded"
    elif request.device is traces.Device.CPU and any(word in str(error).lower() for word in ("cuda", "accelerator")):
        advice = "; a program that was written for GPUs needs --device cuda"
    elif not request.is_fake and (isinstance(error, NotImplementedError) or "SyncBatchNorm" in str(error)):
        advice = "; a CPU has no such kernel: record with --fake, where nothing is computed"
    elif (request.is_fake and "metadata read failed" in str(error)) or (
        isinstance(error, FileNotFoundError) and any(os.path.basename(path) in str(error) for path in SAVED)
    ):
        advice = "; with --fake nothing is saved: let it not ask for that file"
    elif request.is_fake and isinstance(error, AssertionError):
        advice = "; if it asserts values, which nobody knows with --fake, record without --fake"
    elif isinstance(error, ModuleNotFoundError):
        advice = "; install it, or, if it needs a GPU, put a module of this name on PYTHONPATH that calls torch instead"
    elif isinstance(error, ValueError) and str(error).startswith("Shards ShardMetadata"):
        advice = "; other ranks do not tell a recorded rank their shards for LOCAL_STATE_DICT: use SHARDED_STATE_DICT"
    elif isinstance(error, distributed.DistStoreError):
        advice = "; a recorded rank has no peers that write into its store: leave it out there"
    elif recorder.has_bytes and is_of_pickle:
        advice = "; no other rank sends its pickled bytes: send objects by all_gather_object, or leave it out there"
    elif READ_AT and isinstance(error, RuntimeError | ValueError | IndexError) and "there are none" not in str(error):
        advice = f"; {READ_AT[0]} reads values, and {_NO_VALUES}"
    if any(path.parts[-2:] == ("jit", "_trace.py") for path in paths):
        advice = "; torch.jit.trace, which a count of FLOPs may use, cannot trace all programs here: leave it out"
    return advice


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
    spawn = partial(_run_own, request)
    folder = os.getcwd() if request.is_module else str(Path(request.program).resolve().parent)
    instead = {
        "sys.argv": [request.program, *request.arguments],
        "sys.path": [folder, *sys.path],
        **dict.fromkeys(("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"), spawn),
        # A fork knows that it must not train.
        **{f"multiprocessing.context.{kind}Process._Popen": _FORK for kind in ("Spawn", "ForkServer")},
        "torch.distributed.rpc.init_rpc": _refuse_rpc,
    }
    variables = {name: str(value) for name, value in environment.items()}
    with patch.dict(os.environ, variables), replaced(instead.items()):
        yield


def _run_own(request: traces.TraceRequest, fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> Any:
    if nprocs not in (request.ranks_here, request.num_ranks):
        raise ProgramError(f"the program starts {plural(nprocs, 'rank')} itself: give --ranks {nprocs}")
    fn(request.rank % nprocs, *args)
    return SimpleNamespace(join=returning(True), processes=[])


def _warning(message: str) -> Callable[..., Any]:
    def warned(*given: Any) -> Any:
        warn(message)
        return given

    return warned


def _refuse_rpc(*_: object, **__: object) -> NoReturn:
    raise ProgramError("the program calls other ranks by torch.distributed.rpc, and a recorded rank has none")


def with_times_of(timed: traces.TracedStep, watched: traces.TracedStep) -> traces.TracedStep:
    """Return the watched step with the times of a timed step; the timed one if their calls differ.

    Watching takes as long as a small operator, so a watched step has no valid times. Where a READ divides the computing
    between two calls or waits, the timed step's time is divided in proportion.
    """
    if _skeleton(timed) != _skeleton(watched):
        return timed
    timed_s, watched_s = _computing_s(timed), _computing_s(watched)
    events = [
        replace(event, seconds=timed_s[stretch] * event.seconds / watched_s[stretch] if event.seconds else 0.0)
        for event, stretch in zip(watched.events, _stretches(watched), strict=True)
    ]
    calls = [replace(call, after=seen.after) for call, seen in zip(timed.calls, watched.calls, strict=True)]
    return traces.TracedStep(tuple(events), tuple(calls))


def _skeleton(step: traces.TracedStep) -> tuple[list[tuple[traces.TraceEventKind, int]], list[traces.TraceCall]]:
    """Return the calls and waits of a step, which do not depend on watching."""
    events = [(event.kind, event.call) for event in step.events if event.kind in _OF_BOTH]
    return events, [replace(call, local_s=0.0, after=None) for call in step.calls]


def _stretches(step: traces.TracedStep) -> list[int]:
    """Return the number of calls and waits up to each event."""
    return list(accumulate(event.kind in _OF_BOTH for event in step.events))


def _computing_s(step: traces.TracedStep) -> dict[int, float]:
    seconds: defaultdict[int, float] = defaultdict(float)
    for event, stretch in zip(step.events, _stretches(step), strict=True):
        seconds[stretch] += event.seconds
    return seconds
