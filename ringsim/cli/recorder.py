"""`record` starts the recorder, which stands above us, with torch; nothing is imported upwards."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ringsim.console import Progress, ended_once
from ringsim.files import encode
from ringsim.traces import INTERRUPTED, ProgramTrace, TraceRequest

GRACE_S = 10.0  # in which an interrupted program may end
RECORDING = (sys.executable, "-m", "collectives.recording")


def record(request: TraceRequest, stdout: int | None = None, stderr: BinaryIO | None = None) -> ProgramTrace:
    """Run the program, and return the trace that is then in the file for it.

    stdout, stderr: of the program; None: ours. If it cannot be recorded, the recorder has said why on stderr, and
    SystemExit ends us with its exit code. Raises ValueError if the program has ended the recorder's process.
    """
    output = Path(request.output).absolute()  # the program may change the folder
    before = _version_of(output)
    environment = dict(os.environ)
    if request.ranks_here > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun: the ranks of a host share its cores
    command = [*RECORDING, json.dumps(encode(replace(request, output=str(output))))]
    # It has a session of its own, so that Ctrl-C reaches us alone.
    with (
        ended_once(),
        subprocess.Popen(
            command, env=environment, cwd=request.folder or None, start_new_session=True, stdout=stdout, stderr=stderr
        ) as recording,
    ):
        exit_code = _ended(recording)
    if exit_code > 0:
        sys.exit(exit_code)
    if exit_code < 0:
        raise ValueError(f"{request.program}: its process was ended by {signal.Signals(-exit_code).name}")
    if (output.is_file() and _version_of(output) == before) or not output.exists():
        raise ValueError(f"{request.program}: it ended its process, as by os._exit, before it was recorded")
    return ProgramTrace.load(output)


def _version_of(file: Path) -> tuple[int, int] | None:
    """Return what changes when the file is replaced; None if there is none."""
    if not file.exists():
        return None
    status = file.stat()
    return status.st_ino, status.st_mtime_ns


def _ended(recording: subprocess.Popen[bytes]) -> int:
    """Wait for the recorder's end, and return its exit code; what ends us ends it as well."""
    try:
        return recording.wait()
    except KeyboardInterrupt:
        recording.terminate()
        with suppress(subprocess.TimeoutExpired):
            if recording.wait(GRACE_S) == INTERRUPTED:  # it has said so
                return INTERRUPTED
        raise
    finally:
        recording.kill()


def request_of(trace: ProgramTrace, file: Path) -> TraceRequest:
    """Return how the trace in a file was recorded, if it can be recorded so again.

    Raises ValueError, which names the file, if it does not say so, or its program is not there.
    """
    request = trace.request
    if request is None:
        raise ValueError(f"{file}: does not contain how it was recorded: record it again with ringsim trace")
    folder = Path(request.folder)
    is_there = folder.is_dir() if request.is_module else (folder / request.program).is_file()
    if not is_there:
        missing = request.folder if request.is_module else folder / request.program
        raise ValueError(f"{file}: was recorded of {missing}, which does not exist: record it again with ringsim trace")
    return request


def record_again(requests: Sequence[TraceRequest], progress: Progress) -> Iterator[ProgramTrace]:
    """Yield the trace of each request, which is kept in no file; each is named on stderr before it runs.

    What the programs print is left out, and a line that several write on stderr, such as a warning, comes once.
    """
    progress.begin("recording", len(requests))
    said: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "step.trace.json"), Path(folder, "errors.txt")
        for request in requests:
            progress.say(f"recording again: {request.command}")
            try:
                with errors.open("wb") as stderr:
                    trace = record(replace(request, output=str(output)), subprocess.DEVNULL, stderr)
            finally:
                for line in errors.read_text(encoding="utf-8", errors="replace").splitlines():
                    if line not in said:
                        progress.say(line)
                    said.add(line)
            progress.update(1)
            yield trace
