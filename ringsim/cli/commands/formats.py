"""`ringsim export` and `ringsim import`: schedules in the formats of others."""

import math
import shlex
from pathlib import Path

import click
from click import argument, option

from ringsim import console
from ringsim.cli.commands.algorithms import proof_dict, proof_lines
from ringsim.cli.options import schedule_options, size_option
from ringsim.schedule import Schedule, ScheduleError, verify
from ringsim.units import plural


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
def export(schedule: Schedule, form: str | None, output: Path, size: int, reduce_bandwidth: float | None) -> None:
    """Write a schedule for LogGOPSim (GOAL text, for --size bytes) or MSCCL (XML)."""
    from ringsim.formats import goal_lines, msccl_lines  # noqa: PLC0415

    form = form or {".goal": "goal", ".xml": "msccl"}.get(output.suffix.lower())
    if form is None:
        raise click.UsageError(f"--output {output}: give --format, or a file that ends with .goal or .xml")
    with console.Progress() as progress:
        if form == "goal":
            progress.begin("writing transfers", schedule.num_transfers)
            lines = goal_lines(schedule, size, reduce_bandwidth or math.inf, progress.update)
        else:
            progress.begin(f"writing {plural(schedule.num_transfers, 'transfer')}")
            lines = msccl_lines(schedule)
        with console.output_file(output) as file:
            file.writelines(line.encode() for line in lines)


@console.command("ringsim import ring.xml", name="import")
@argument("file", type=click.Path(path_type=Path))
@console.json_option
def import_(file: Path, as_json: bool) -> None:
    """Read an MSCCL XML file, prove it, and show how to use it."""
    from ringsim.formats import read_msccl  # noqa: PLC0415

    schedule = read_msccl(file)
    try:
        proof = verify(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"{console.in_one_line(str(file))}: {error}") from None
    name = shlex.quote(str(file))
    options = f"--collective {schedule.collective.value} --algorithm {name} --ranks {schedule.num_ranks}"
    proved = proof_lines(f"{schedule}, {plural(schedule.num_chunks, 'chunk')}", proof)
    console.print_result(
        "\n".join([*proved, f"use it with {options}"]), proof_dict(schedule, proof) | {"options": options}, as_json
    )
