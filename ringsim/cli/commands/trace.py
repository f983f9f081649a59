"""`ringsim trace`."""

import os
from pathlib import Path
from typing import NamedTuple

import click
from click import argument, option

from ringsim.cli.options import together
from ringsim.cli.recorder import record
from ringsim.console import FILE, STDOUT, Choice, IntRange, check_writable, command, require_torch, say_wrote
from ringsim.files import decode, encode
from ringsim.text_table import align_columns
from ringsim.traces import AssumedValues, Device, ProgramTrace, TraceRequest
from ringsim.units import format_size, format_time, plural


class TracedJob(NamedTuple):
    """The ranks of a job, and the recorded rank."""

    ranks: int
    rank: int
    ranks_per_host: int


class TracedProgram(NamedTuple):
    """A script, or a module, and its arguments."""

    program: str
    arguments: tuple[str, ...]
    is_module: bool


@command(
    "ringsim trace --ranks 64 --ranks-per-host 8 train.py --batch-size 16",
    "ringsim trace --ranks 4 -o step.trace.json -m trainers --task lm",
    "ringsim trace --ranks 128 --fake examples/llama.py",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@together(
    "job",
    TracedJob,
    option("--ranks", type=IntRange(1, 2**20), default=8, help="Number of ranks of the job, as the program sees it."),
    option("--ranks-per-host", type=IntRange(1, 2**20), default=8, help="Number of ranks per host."),
    option("--rank", type=IntRange(0), default=0, help="Rank that the program runs as."),
)
@option(
    "--steps",
    type=IntRange(1, 10_000),
    help="Number of steps to record, after 3 to warm up, or 2 with --fake [default: 3, or 1 with --fake].",
)
@option("--fake", is_flag=True, help="Use tensors without data: nothing is computed, and no memory used.")
@option("--assume", type=Choice(AssumedValues), help="Equally many tokens for all experts of a router, with --fake.")
@option("--device", type=Choice(Device), help="Device that the program sees [default: cuda with --fake, else cpu].")
@option("-o", "--output", type=FILE, default="step.trace.json", help="Write the trace to this file, as JSON.")
@together(
    "program",
    TracedProgram,
    option("-m", "is_module", is_flag=True, help="Read PROGRAM as the name of a module, not a file."),
    argument("program"),
    argument("arguments", nargs=-1, type=click.UNPROCESSED),
)
def trace(
    job: TracedJob,
    program: TracedProgram,
    steps: int | None,
    fake: bool,
    assume: AssumedValues | None,
    device: Device | None,
    output: Path,
) -> None:
    """Record a training program as one rank of many, in one process and without a network.

    PROGRAM is a script that torchrun could start, unchanged; ARGUMENTS are its own. Its process groups send nothing.
    Each collective is recorded, and gives the result that it would have if all ranks held this rank's data; the
    computations between the calls are recorded as well. A step ends with each step of the optimizer. When all steps are
    recorded the program is stopped.

    With --fake a model of any size is recorded in the memory of a laptop. ringsim step then needs --gpu, or --flops and
    --memory-bandwidth, to say how long its operators take.
    """
    require_torch("trace")
    if output == STDOUT:
        raise click.UsageError("--output -: the program may print to stdout itself; name a file")
    if assume and not fake:
        raise click.UsageError(f"--assume {assume.value}: only with --fake, where tensors have no values")
    check_writable(f"--output {output}", output.parent)
    if not program.is_module and not Path(program.program).is_file():
        raise click.UsageError(f"{program.program}: there is no such file; for a module, write -m before the name")
    steps = steps or (1 if fake else 3)
    # Recorded times belong to the program's CPU path; times from a GPU's rates belong to its CUDA path.
    device = device or (Device.CUDA if fake else Device.CPU)
    request = TraceRequest(*program, *job, steps, str(output), fake, os.getcwd(), device, assume)
    recorded = record(decode(TraceRequest, encode(request)))  # which refuses a name or argument that is no text
    click.echo(format_trace(recorded))
    say_wrote(output)


def format_trace(trace: ProgramTrace) -> str:
    """Return a line per kind of call of the last step, and one for the whole step."""
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
