"""`ringsim verify`, `ringsim export` and `ringsim import`."""

import math
import shlex
from pathlib import Path
from typing import Any

import click
from click import argument, option

from ringsim import console
from ringsim.cli.options import size_option
from ringsim.cli.selection import Selection, schedule_options
from ringsim.schedule import Proof, Schedule, ScheduleError
from ringsim.schedule import verify as prove
from ringsim.units import plural


@console.command("ringsim verify --algorithm halving_doubling --ranks 12")
@schedule_options
@console.json_option
def verify(selection: Selection, as_json: bool) -> None:
    """Prove that an algorithm gives every rank what it must have, each contribution counted once.

    It also counts the transfers that bring nothing new: copies of what the receiver holds already.
    """
    schedule = selection.schedule
    with console.progress_bar(schedule.num_steps, "proving", delay_s=1.0) as progress:
        proof = prove(schedule, progress.update)
    console.print_result("\n".join(_proof_lines(str(schedule), proof)), _proof_dict(schedule, proof), as_json)


def _proof_lines(name: str, proof: Proof) -> list[str]:
    steps, transfers = plural(proof.num_steps, "step"), plural(proof.num_transfers, "transfer")
    lines = [f"{name}: correct ({steps}, {transfers})"]
    if proof.first_redundant:
        step, (src, dst, chunk, *_) = proof.first_redundant
        bring = "brings" if proof.num_redundant == 1 else "bring"
        first = f"the first is step {step}, {src} -> {dst}, chunk {chunk}"
        lines.append(f"{proof.num_redundant} of {transfers} {bring} nothing new: {first}")
    return lines


def _proof_dict(schedule: Schedule, proof: Proof) -> dict[str, Any]:
    first = None
    if proof.first_redundant:
        step, transfer = proof.first_redundant
        first = {"step": step, "src": transfer.src, "dst": transfer.dst, "chunk": transfer.chunk}
    return {
        "collective": schedule.collective.value,
        "algorithm": schedule.algorithm,
        "num_ranks": schedule.num_ranks,
        "num_chunks": schedule.num_chunks,
        "num_steps": proof.num_steps,
        "num_transfers": proof.num_transfers,
        "num_redundant": proof.num_redundant,
        "first_redundant": first,
        "correct": True,
    }


@console.command(
    "ringsim export --ranks 4 --size 1MiB --format goal -o ring.goal",
    "ringsim export --format msccl -o ring.xml",
    name="export",
)
@schedule_options
@option(
    "--format",
    "form",
    type=console.Choice(["goal", "msccl"]),
    help="Output format: goal, the text that LogGOPSim reads, or msccl, the XML that MSCCL reads "
    "[default: by the suffix of --output, .goal or .xml].",
)
@option("-o", "--output", type=console.OUTPUT, required=True, help="Write the schedule to this file.")
@size_option
@option(
    "--reduce-bandwidth",
    type=console.RATE,
    help="Rate at which a rank adds (goal only); without it no calc is written.",
)
def export(selection: Selection, form: str | None, output: Path, reduce_bandwidth: float | None) -> None:
    """Write a schedule for LogGOPSim (GOAL text, for --size bytes) or MSCCL (XML)."""
    from ringsim.formats import goal_lines, msccl_lines  # noqa: PLC0415

    schedule = selection.schedule
    form = form or {".goal": "goal", ".xml": "msccl"}.get(output.suffix.lower())
    if form is None:
        raise click.UsageError(f"--output {output}: give --format, or a file that ends with .goal or .xml")
    with console.Progress() as progress:
        if form == "goal":
            progress.begin("writing transfers", schedule.num_transfers)
            lines = goal_lines(schedule, selection.size, reduce_bandwidth or math.inf, progress.update)
        else:
            progress.begin(f"writing {plural(schedule.num_transfers, 'transfer')}")
            lines = msccl_lines(schedule)
        console.write_output(output, lines)


@console.command("ringsim import ring.xml", name="import")
@argument("file", type=click.Path(path_type=Path))
@console.json_option
def import_(file: Path, as_json: bool) -> None:
    """Read an MSCCL XML file, prove it, and show how to use it."""
    from ringsim.formats import read_msccl  # noqa: PLC0415

    schedule = read_msccl(file)
    try:
        proof = prove(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"{console.in_one_line(str(file))}: {error}") from None
    name = shlex.quote(str(file))
    options = f"--collective {schedule.collective.value} --algorithm {name} --ranks {schedule.num_ranks}"
    proved = _proof_lines(f"{schedule}, {plural(schedule.num_chunks, 'chunk')}", proof)
    result = _proof_dict(schedule, proof) | {"options": options}
    console.print_result("\n".join([*proved, f"use it with {options}"]), result, as_json)
