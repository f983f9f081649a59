"""Programs recorded in a process that has loaded torch, and `ringsim trace` with a recorder forked from one."""

import atexit
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any, NoReturn

from ringsim.traces import Device, ProgramTrace, TraceRequest
from tests.forked import Answer, Forked, answers_of, be_a_program, nursery
from tests.ranks import run_forked_programs

LIMIT_S = 240.0  # less than the limit of a test
BACKEND = "cpu:gloo,cuda:nccl"
IMPORTS = """
import atexit, copy, ctypes, io, multiprocessing, os, pickle, signal, subprocess, sys, threading
import numpy, torch, torch.distributed as dist
from torch import nn"""
HEAD = f"""{IMPORTS}
never = threading.Event()
dist.init_process_group("{BACKEND}")
weights = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weights])
def train(steps=9):
    for _ in range(steps):
        weights.grad = torch.ones(4)
        optimizer.step()
"""
LINE = 1 + HEAD.count("\n")  # of what follows
_RECORDERS: list[Forked] = []  # one that is kept for many programs, or none


def recorded(
    program: Path | str,
    *arguments: str,
    num_ranks: int = 8,
    rank: int = 0,
    num_steps: int = 1,
    is_fake: bool = False,
    device: Device = Device.CPU,
    call: Callable[[TraceRequest], Any] | None = None,
    **also: Any,
) -> Any:
    """Return the trace of the program, or why there is none.

    program: a file, or the text of a file `train.py`. call: what to do in the recorder's process instead. also: further
    fields of the request.
    """
    if isinstance(program, str):
        text, program = program, nursery().new_folder() / "train.py"
        program.write_text(text)
    place = num_ranks, rank, 8
    request = TraceRequest(str(program), arguments, False, *place, num_steps, "", is_fake, device=device, **also)
    if not _RECORDERS or _RECORDERS[0].home.is_closed:
        _RECORDERS[:] = [nursery().fork(nursery().new_folder() / "log")]
    (recorder,) = _RECORDERS
    recorder.start(_in_a_fork, call or record, request)
    answer = answers_of([recorder], LIMIT_S).get(recorder)
    if answer is None or not answer.good:
        _RECORDERS.pop().signal(signal.SIGKILL)
        raise AssertionError(answer.value if answer else f"the recorder hangs, or is gone: {recorder.log.read_text()}")
    return answer.value


def trace_of(program: Path | str, *arguments: str, **options: Any) -> ProgramTrace:
    """Return the trace of a program that can be recorded."""
    trace = recorded(program, *arguments, **options)
    assert isinstance(trace, ProgramTrace), f"{trace}; it wrote:\n{_RECORDERS[0].log.read_text()[-4000:]}"
    return trace


def record(request: TraceRequest) -> ProgramTrace | str:
    """Return the trace, or the message of the refusal; in the process that is to record."""
    from collectives.recording.program import ProgramError, record_program

    try:
        return record_program(request)
    except ProgramError as error:
        return str(error)


def _in_a_fork(call: Callable[[TraceRequest], Any], request: TraceRequest) -> Any:
    """In the recorder's process: call it in a copy that has recorded nothing, but has all modules loaded."""
    import collectives.recording.program  # noqa: F401

    ours, theirs = Pipe()
    if (pid := os.fork()) == 0:
        gc.unfreeze()  # the recorder would leave the garbage of the program frozen
        try:
            theirs.send(Answer(True, call(request)))
        except BaseException:  # whoever has asked judges
            theirs.send(Answer(False, traceback.format_exc()))
        finally:
            os._exit(0)
    theirs.close()
    try:
        answer: Answer = ours.recv()
    except EOFError:
        answer = Answer(False, f"the process that records has ended by itself: {os.waitpid(pid, 0)[1]}")
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert answer.good, answer.value
    return answer.value


def ringsim(folder: Path, *arguments: object) -> CompletedProcess[str]:
    """Return the outcome of a command of ringsim in that folder; what it records, a forked process records."""
    (folder / "outputs").mkdir(exist_ok=True)
    (done,) = run_forked_programs(
        1, LIMIT_S, folder / "outputs", _run_ringsim, folder, [str(each) for each in arguments]
    )
    return done


def _run_ringsim(_: int, folder: Path, arguments: list[str]) -> None:
    from ringsim.cli import main
    from ringsim.cli.commands import trace

    os.chdir(folder)
    trace.Popen = _ForkedRecorder  # type: ignore[misc]
    main(arguments, prog_name="ringsim")


class _ForkedRecorder(Popen[Any]):
    """A child process that runs the recorder in a copy of this interpreter, instead of in one that imports torch."""

    def _execute_child(self, command: list[str], *arguments: Any) -> None:  # type: ignore[override]
        cwd, env, stdout, stderr = arguments[4], arguments[5], arguments[12], arguments[14]
        self._child_created = True  # type: ignore[attr-defined]
        self.pid = os.fork()
        if self.pid == 0:
            for ours, theirs in ((stdout, 1), (stderr, 2)):
                if ours != -1:
                    os.dup2(ours, theirs)
            os.setsid()
            os.chdir(cwd or os.getcwd())
            os.environ.clear()
            os.environ.update(env)
            be_a_program(_be_the_recorder, command)


def _be_the_recorder(command: list[str]) -> NoReturn:
    from collectives.recording import __main__ as recording

    atexit._clear()  # which would remove this process's folders
    sys.argv = command[command.index(recording.__package__) :]
    sys.path[:] = [path for path in sys.path if path]  # as python -P
    recording.main()
    raise AssertionError("the recorder has returned")
