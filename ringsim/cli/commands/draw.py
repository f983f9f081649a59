"""`ringsim plot` and `ringsim animate`."""

import re
from collections.abc import Sequence
from pathlib import Path

from click import option

from ringsim import console
from ringsim.analysis import RunView
from ringsim.calibration import RECORD_NOTE, compare_run
from ringsim.cli import options
from ringsim.cli.selection import Selection, library_options
from ringsim.measurements import Measurements, RecordedRun
from ringsim.network import Network
from ringsim.report import animation_page
from ringsim.schedule import Schedule


def _default_path(schedule: Schedule, names: str, suffix: str) -> Path:
    name = f"ringsim-{schedule.collective.value}-{names}-{schedule.num_ranks}"
    return Path(re.sub(r"[^\w.-]+", "-", name) + suffix)


@console.command("ringsim plot --ranks 4 --size 1MiB -o ring.png")
@library_options
@options.network_options
@options.size_option
@option(
    "-o",
    "--output",
    type=console.PICTURE,
    help="Write the picture to this file: PNG, PDF or SVG, by its suffix [default: the name of the algorithm].",
)
@options.style_option
def plot(selection: Selection, network: Network, output: Path | None, style: str | None) -> None:
    """Draw the lanes of all ranks, the chunk grid, time against size, and who sends to whom."""
    schedule, network = selection.drawn(network)
    path = output or _default_path(schedule, schedule.algorithm, ".png")
    with console.Progress() as progress:
        progress.begin("simulating")
        view = RunView(schedule, network, selection.size)
        progress.begin("drawing")
        options.PictureFile(path, style).save(view)


@console.command(
    "ringsim animate --ranks 4 --size 1MiB -o ring.html",
    "ringsim animate --ranks 8 --compare ring,halving_doubling -o two.html",
)
@library_options
@options.network_options
@options.size_option
@option("--compare", "compared", help="Two algorithms to show on one time axis, such as ring,halving_doubling.")
@option(
    "--measured",
    type=console.FILE,
    help="File of ringsim measure --record, whose recorded run is shown next to its prediction for --network; "
    "of several, the run of --algorithm, else the first.",
)
@options.trust_option
@option(
    "-o", "--output", type=console.OutputFile((".html", ""), stdout=True), help="Write the page (.html) to this file."
)
def animate(
    selection: Selection,
    network: Network,
    compared: str | None,
    measured: Path | None,
    trusted: tuple[str, ...],
    output: Path | None,
) -> None:
    """Animate a collective: who sends what to whom, what each rank holds, and when.

    The page is one file that needs no network: play it, step through it, or link to a moment with #step=3 or #t=0.5.
    If something fails and the run never finishes, it shows who hangs and who waits for whom.
    """
    if compared:
        options.refuse_together("compare", "measured", "algorithm")
    if measured:
        options.refuse_together("measured", "ranks", "size", "collective", "order")
        views: Sequence[RunView] = compare_run(_recorded_run(measured, selection.algorithm), network, trusted).views
    elif compared:
        views = [
            RunView(*other.drawn(network), other.size, name=name)
            for name, other in _compared(compared, selection).items()
        ]
    else:
        views = [RunView(*selection.drawn(network), selection.size)]
    names = "-".join(dict.fromkeys(view.name.partition(",")[0] for view in views))
    path = output or _default_path(views[0].schedule, names, ".html")
    console.write_output(path, [animation_page(views, RECORD_NOTE if measured else "")])


def _compared(names: str, selection: Selection) -> dict[str, Selection]:
    algorithms = [name.strip() for name in names.split(",")]
    if len(algorithms) != 2 or not all(algorithms) or len(set(algorithms)) == 1:
        raise ValueError(f"--compare {names}: must name two algorithms, such as ring,halving_doubling")
    return {name: selection.other(name) for name in algorithms}


def _recorded_run(path: Path, wanted: str | None) -> RecordedRun:
    for run in Measurements.load(path).runs:
        if wanted in (None, run.algorithm):
            return run
    missing = f"recorded run of {wanted}" if wanted else "recorded run"
    raise ValueError(f"{path}: holds no {missing}: ringsim measure --record makes a file that does")
