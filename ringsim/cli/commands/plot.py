"""`ringsim plot`."""

import re
from pathlib import Path

import click

from ringsim.cli.options import network_options, schedule_options, size_option, style_option
from ringsim.console import PICTURE
from ringsim.network import AnyNetwork
from ringsim.schedule import Schedule


@click.command()
@schedule_options
@network_options
@size_option
@click.option("-o", "--output", type=PICTURE, help="PNG, PDF or SVG, by its suffix.")
@style_option
def plot(schedule: Schedule, network: AnyNetwork, size: int, output: Path | None, style: str | None) -> None:
    """Draw the lanes of all ranks, the chunk grid, time against size, and who sends to whom."""
    from ringsim.analysis import make_overview  # noqa: PLC0415
    from ringsim.report.plots.overview_figure import save_overview  # noqa: PLC0415  takes most of a second to import

    name = f"ringsim-{schedule.collective.value}-{schedule.algorithm}-{schedule.num_ranks}"
    path = output or Path(re.sub(r"[^\w.-]+", "-", name) + ".png")
    save_overview(make_overview(schedule, network, size), path, style)
    click.echo(path)
