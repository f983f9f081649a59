"""`ringsim trace`: `record` starts the recorder, which needs torch, as a process; `Recordings` repeat a recording."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any, BinaryIO

import click
from click import argument, option
from msgspec.structs import replace

from ringsim import console
from ringsim.files import decode, encode, naming_place
from ringsim.text_table import align_columns
from ringsim.traces import INTERRUPTED, AssumedValues, Device, ProgramTrace, TraceRequest
from ringsim.units import format_size, format_time, plural


@console.command(
    "ringsim trace --ranks 64 --ranks-per-host 8 train.py --batch-size 16",
    "ringsim trace --ranks 4 -o step.trace.json -m trainers --task lm",
    "ringsim trace --ranks 128 --fake examples/llama.py",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@option(
    "--ranks",
    "num_ranks",
    type=console.IntRange(1, 2**20),
    default=8,
    help="Number of ranks of the job, as the program sees it.",
)
@option("--ranks-per-host", type=console.IntRange(1, 2**20), default=8, help="Number of ranks per host.")
@option("--rank", type=console.IntRange(0), default=0, help="Rank that the program runs as.")
@option(
    "--steps",
    "num_steps",
    type=console.IntRange(1, 10_000),
    help="Number of steps to record, after 3 to warm up, or 2 with --fake [default: 3, or 1 with --fake].",
)
@option("--fake", "is_fake", is_flag=True, help="Use tensors without data: nothing is computed, and no memory used.")
@option(
    "--assume", type=console.Choice(AssumedValues), help="Equally many tokens for all experts of a router, with --fake."
)
@option(
    "--device", type=console.Choice(Device), help="Device that the program sees [default: cuda with --fake, else cpu]."
)
@option("-o", "--output", type=console.FILE, default="step.trace.json", help="Write the trace to this file, as JSON.")
@option("-m", "is_module", is_flag=True, help="Read PROGRAM as the name of a module, not a file.")
@argument("program")
@argument("arguments", nargs=-1, type=click.UNPROCESSED)
def trace(program: str, is_fake: bool, assume: AssumedValues | None, output: Path, **rest: Any) -> None:
    """Record a training program as one rank of many, in one process and without a network.

    PROGRAM is a script that torchrun could start, unchanged; ARGUMENTS are its own. Its process groups send nothing.
    Each collective is recorded, and gives the result that it would have if all ranks held this rank's data; the
    computations between the calls are recorded as well. A step ends with each step of the optimizer. When all steps are
    recorded the program is stopped.

    With --fake a model of any size is recorded in the memory of a laptop. ringsim step then needs --gpu, or --flops and
    --memory-bandwidth, to say how long its operators take.
    """
    console.require_torch("trace")
    if output == console.STDOUT:
        raise click.UsageError("--output -: the program may print to stdout itself; name a file")
    if assume and not is_fake:
        raise click.UsageError(f"--assume {assume.value}: only with --fake, where tensors have no values")
    console.check_writable(f"--output {output}", output.parent)
    if not rest["is_module"] and not Path(program).is_file():
        raise click.UsageError(f"{program}: there is no such file; for a module, write -m before the name")
    rest["num_steps"] = rest["num_steps"] or (1 if is_fake else 3)
    # Recorded times belong to the program's CPU path; times from a GPU's rates belong to its CUDA path.
    rest["device"] = rest["device"] or (Device.CUDA if is_fake else Device.CPU)
    request = TraceRequest(
        program=program, is_fake=is_fake, assume=assume, output=str(output), folder=os.getcwd(), **rest
    )
    recorded = record(decode(TraceRequest, encode(request)))  # which refuses a name or argument that is no text
    click.echo(format_trace(recorded))
    console.say_wrote(output)


def format_trace(trace: ProgramTrace) -> str:
    """Return a line per kind of call of the last step, and its sum."""
    step = trace.steps[-1]
    kinds: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}  # groups of the same ranks are one
    for call in step.calls:
        kinds.setdefault((call.collective, call.dtype, trace.groups[call.group].ranks), []).append(call.size_bytes)
    rows = [("collective", "dtype", "ranks", "calls", "bytes", "largest")]
    for (collective, dtype, ranks), sizes in kinds.items():
        rows.append(
            (collective, dtype, str(len(ranks)), str(len(sizes)), format_size(sum(sizes)), format_size(max(sizes)))
        )
    computing = f"{format_time(step.compute_s)} of computing" if step.compute_s else f"{step.flops / 1e12:.4g} TFLOP"
    work = f"{computing}, and {plural(len(step.calls), 'call')}"
    head = [f"rank {trace.rank} of {trace.num_ranks}, last of {plural(len(trace.steps), 'step')}: {work}"]
    if trace.memory:
        peak = trace.memory.peak
        kinds_of_memory = {"parameters": peak.parameters, "gradients": peak.gradients, "optimizer": peak.optimizer}
        kinds_of_memory["activations and the rest"] = peak.rest
        held = ", ".join(f"{kind} {format_size(size_bytes)}" for kind, size_bytes in kinds_of_memory.items())
        head.append(f"memory of tensors at the peak {format_size(peak.total)}: {held}")
    return "\n".join([*head, *align_columns(rows)] if step.calls else head)


GRACE_S = 10.0  # in which an interrupted program may end
RECORDING = (sys.executable, "-P", "-m", "collectives.recording")  # independent of files in the working directory


def record(request: TraceRequest, stdout: int | None = None, stderr: BinaryIO | None = None) -> ProgramTrace:
    """Run the program, and return its trace; stdout, stderr: None: inherited.

    If recording fails, the recorder prints the reason, and SystemExit has its exit code. Raises ValueError if the
    program ended the recorder's process.
    """
    output = Path(request.output).absolute()  # the program may change the folder
    environment = dict(os.environ)
    if request.ranks_here > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun: the ranks of a host share its cores
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.txt")
        command = [*RECORDING, json.dumps(encode(replace(request, output=str(output)))), str(report)]
        # The recorder has its own session, so that Ctrl-C reaches only this process.
        start = partial(Popen, command, env=environment, cwd=request.folder or None, start_new_session=True)
        with console.ended_once(), start(stdout=stdout, stderr=stderr) as recording:
            exit_code = _ended(recording)
        report_text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    first = report_text.partition("\n")[0]
    if first.isdigit():  # the recorder's own exit code, independent of the later fate of the process
        if int(first):
            sys.exit(int(first))
        return ProgramTrace.load(output)
    if exit_code < 0:
        raise ValueError(_crash(request, signal.Signals(-exit_code), report_text))
    raise ValueError(f"{request.program}: it ended its process, as by os._exit, before it was recorded")


def _ended(recording: Popen[Any]) -> int:
    try:
        return recording.wait()
    except KeyboardInterrupt:
        recording.terminate()
        with suppress(subprocess.TimeoutExpired):
            if (exit_code := recording.wait(GRACE_S)) in (0, INTERRUPTED):  # it was done already, or has said so
                return exit_code
        raise
    finally:
        recording.kill()
        with suppress(OSError):  # if the program left no process
            os.killpg(recording.pid, signal.SIGTERM)


def _crash(request: TraceRequest, ended_by: signal.Signals, traceback: str) -> str:
    """Return the signal that ended the process, and the line of the program, from the traceback of `faulthandler`."""
    lines = re.findall(r'^  File "(.*)", line (\d+) in ', traceback, re.MULTILINE)
    own = [f"{file}:{line}" for file, line in lines if request.is_own(file)]
    advice = ""
    if ended_by is signal.SIGKILL:
        advice = ", as where memory runs out" + ("" if request.is_fake else "; with --fake tensors take none")
    elif lines:
        advice = ", from within code that is not Python: leave that call out while the program is recorded"
        advice += ", or record without --fake, where tensors have data" if request.is_fake else ""
    return f"{own[0] if own else request.program}: its process was ended by {ended_by.name}{advice}"


@dataclass(frozen=True, slots=True)
class Recordings:
    """The trace in a file, and the numbers of ranks for which its program is recorded again.

    program: in place of the file's. run_recorded: whether the user allows the file's program, chosen by its author.
    """

    file: Path
    program: tuple[str, ...]
    ranks: list[int] | None
    run_recorded: bool

    def __post_init__(self) -> None:
        if (self.ranks is None and (self.program or self.run_recorded)) or (self.program and self.run_recorded):
            raise click.UsageError(
                "give --ranks with either a PROGRAM or --run-recorded, and neither of them without it"
            )

    def traces(self, trace: ProgramTrace, per_host: int | None, progress: console.Progress) -> list[ProgramTrace]:
        """Return the trace on each number of ranks, from the file or recorded again.

        per_host: None: as recorded. Raises ValueError if the program is unknown, missing, or may not run.
        """
        request = self._request(trace)
        with naming_place(self.file):
            per_host = per_host or request.ranks_per_host
            requests = [replace(request, num_ranks=ranks, ranks_per_host=per_host) for ranks in self.ranks or ()]
        own = trace.num_ranks, trace.ranks_per_host
        missing = [request for request in requests if (request.num_ranks, request.ranks_here) != own]
        recorded = list(record_again(missing, progress))
        return recorded if len(missing) == len(requests) else [trace, *recorded]

    def _request(self, trace: ProgramTrace) -> TraceRequest:
        """Return the request. Raises ValueError if it cannot or may not be repeated."""
        request = trace.request
        if request is None:
            raise ValueError(f"{self.file}: does not contain how it was recorded: record it again with ringsim trace")
        if self.program:
            is_module = self.program[0] == "-m"
            name, *arguments = self.program[is_module:] or [""]
            given = {"program": name, "arguments": tuple(arguments), "is_module": is_module, "folder": os.getcwd()}
            request = decode(TraceRequest, encode(replace(request, **given)))  # as of a file
        elif not self.run_recorded:
            raise ValueError(
                f"{self.file}: --ranks would run what the file names, in {request.folder or '.'}: {request.command}; "
                "give --run-recorded to run it, or your own program behind all options: -- PROGRAM ARGUMENTS"
            )
        folder = Path(request.folder)
        missing = folder if request.is_module else folder / request.program
        if not (missing.is_dir() if request.is_module else missing.is_file()):
            raise ValueError(
                f"{self.file}: to be recorded of {missing}, which does not exist; -m is for the name of a module"
            )
        return request


def record_again(requests: Sequence[TraceRequest], progress: console.Progress) -> Iterator[ProgramTrace]:
    """Yield the trace of each request, named on stderr before it runs.

    The programs' stdout is discarded; equal lines of their stderr are printed once.
    """
    progress.begin("recording", len(requests))
    said: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "step.trace.json"), Path(folder, "errors.txt")
        for request in requests:
            progress.say(f"recording again in {request.folder or '.'}: {request.command}")
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
