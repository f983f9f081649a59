"""`ringsim plot`."""

from functools import partial
from pathlib import Path

from click import option

from ringsim import console
from ringsim.analysis import RunView
from ringsim.cli import options
from ringsim.network import Network, load_network
from ringsim.schedule import Schedule


@console.command("ringsim plot --ranks 4 --size 1MiB -o ring.png")
@partial(options.schedule_options, library=True)
@partial(options.network_options, load=load_network)
@options.size_option
@option(
    "-o",
    "--output",
    type=console.PICTURE,
    help="Write the picture to this file: PNG, PDF or SVG, by its suffix [default: the name of the algorithm].",
)
@options.style_option
def plot(schedule: Schedule, network: Network, size: int, output: Path | None, style: str | None) -> None:
    """Draw the lanes of all ranks, the chunk grid, time against size, and who sends to whom."""
    from ringsim.report.plots import save_plot  # noqa: PLC0415  takes most of a second to import

    schedule, network = options.drawn_as_library(schedule, network, size)
    path = output or options.default_path(schedule, schedule.algorithm, ".png")
    with console.Progress() as progress:
        progress.begin("simulating")
        view = RunView(schedule, network, size)
        progress.begin("drawing")
        save_plot(view, path, style)
    console.say_wrote(path)
