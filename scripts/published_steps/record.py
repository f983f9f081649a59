"""`record`: the traces of programs, each recorded in its own process."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click
from torch.distributed import fsdp  # noqa: F401  loaded once, before processes are forked

from collectives.recording.program import record_program
from published_steps.rows import RANKS_PER_HOST, Recording
from ringsim.limits import available_cores
from ringsim.traces import Device, ProgramTrace, TraceRequest

PROGRAMS = Path(__file__).parent / "programs"
FOLDER = Path(__file__).parents[2] / "build" / "published_steps"


def record(recordings: Iterable[Recording]) -> dict[Recording, ProgramTrace]:
    """Return the traces, from files if they were recorded before."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = list(dict.fromkeys(recordings))
    missing = [recording for recording in wanted if not _file(recording).exists()]
    running: dict[int, Recording] = {}  # by the process that records
    with click.progressbar(missing, label="recording", file=sys.stderr) as bar:
        for recording in bar:
            if len(running) == available_cores():
                _await_one(running)
            running[_start(recording)] = recording
    while running:
        _await_one(running)
    return {recording: ProgramTrace.load(_file(recording)) for recording in wanted}


def _file(recording: Recording) -> Path:
    return FOLDER / f"{recording.file}.json"


def _log(recording: Recording) -> Path:
    return _file(recording).with_suffix(".log")


def _start(recording: Recording) -> int:
    """Record in a forked process, which writes to a file what the program and errors say. Returns its pid."""
    program, output = PROGRAMS / f"{recording.program}.py", _file(recording)
    request = TraceRequest(
        str(program), recording.arguments, False, recording.num_ranks, 0, RANKS_PER_HOST, 1, str(output), True,
        device=Device.CUDA,
    )  # fmt: skip
    if child := os.fork():
        return child
    code = 1
    try:
        with _log(recording).open("w") as stream:
            for descriptor in (1, 2):
                os.dup2(stream.fileno(), descriptor)
            record_program(request, _end).save(output)
            code = 0
    except Exception as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
    finally:
        os._exit(code)


def _await_one(running: dict[int, Recording]) -> None:
    child, status = os.wait()
    recording = running.pop(child)
    if status:
        for other in running:
            os.waitpid(other, 0)
        raise SystemExit(f"{recording.file}: {_log(recording).read_text()[-2000:]}")
    _log(recording).unlink()


def _end(message: str) -> None:
    raise RuntimeError(message)
