"""`ringsim export` and `ringsim import`: schedules in the formats of others."""

import math
from pathlib import Path

import click

from ringsim.cli.options import schedule_options, size_option
from ringsim.console import OUTPUT, RATE
from ringsim.files import atomic_file
from ringsim.schedule import Schedule, verify


@click.command("export")
@schedule_options
@click.option("--format", "form", type=click.Choice(["goal", "msccl"]), required=True, help="GOAL text or MSCCL XML.")
@click.option("-o", "--output", type=OUTPUT, required=True)
@size_option
@click.option("--reduce-bandwidth", type=RATE, help="At which a rank adds (goal only); without it no calc is written.")
def export(schedule: Schedule, form: str, output: Path, size: int, reduce_bandwidth: float | None) -> None:
    """Write a schedule for LogGOPSim (GOAL text, of --size bytes) or MSCCL (XML)."""
    from ringsim.formats import goal_lines, msccl_lines  # noqa: PLC0415

    lines = goal_lines(schedule, size, reduce_bandwidth or math.inf) if form == "goal" else msccl_lines(schedule)
    with atomic_file(output) as file:
        file.writelines(line.encode() for line in lines)
    click.echo(output)


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
def import_(file: Path) -> None:
    """Read an MSCCL XML, prove it, and say how to use it."""
    from ringsim.formats import read_msccl  # noqa: PLC0415

    schedule = read_msccl(file)
    proof = verify(schedule)
    click.echo(
        f"{schedule}, {schedule.num_chunks} chunks: correct ({proof.num_steps} steps, {proof.num_transfers} transfers)"
    )
    click.echo(f"use it with --collective {schedule.collective.value} --algorithm {file} --ranks {schedule.num_ranks}")
