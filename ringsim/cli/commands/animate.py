"""`ringsim animate`."""

from functools import partial
from pathlib import Path

import click
from click import option

from ringsim import console
from ringsim.analysis import RunView
from ringsim.calibration import RECORD_NOTE, compare_run
from ringsim.cli import options
from ringsim.measurements import Measurements, RecordedRun
from ringsim.network import Network, load_network
from ringsim.registry import build
from ringsim.report import animation_page
from ringsim.schedule import Schedule

ANIMATION = console.OutputFile((".html", ""), stdout=True)


@console.command(
    "ringsim animate --ranks 4 --size 1MiB -o ring.html",
    "ringsim animate --ranks 8 --compare ring,halving_doubling -o two.html",
)
@partial(options.schedule_options, library=True)
@partial(options.network_options, load=load_network)
@options.size_option
@option("--compare", "compared", help="Two algorithms to show on one time axis, such as ring,halving_doubling.")
@option(
    "--measured",
    type=console.FILE,
    help="File of ringsim measure --record, whose recorded run is shown next to its prediction for --network; "
    "of several, the run of --algorithm, else the first.",
)
@options.trust_option
@option("-o", "--output", type=ANIMATION, help="Write the page (.html) to this file.")
def animate(
    schedule: Schedule,
    network: Network,
    size: int,
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
        views = [*compare_run(_recorded_run(measured), network, trusted).views]
    elif compared:
        others = _compared(compared, schedule, size)
        views = [
            RunView(*options.drawn_as_library(other, network, size, is_named=True), size, name=name)
            for name, other in others.items()
        ]
    else:
        views = [RunView(*options.drawn_as_library(schedule, network, size), size)]
    names = "-".join(dict.fromkeys(view.name.partition(",")[0] for view in views))
    path = output or options.default_path(views[0].schedule, names, ".html")
    with console.output_file(path) as file:
        file.write(animation_page(views, RECORD_NOTE if measured else "").encode())


def _compared(names: str, schedule: Schedule, size: int) -> dict[str, Schedule]:
    """The schedules of the two algorithms by their names, in the rank placement that was given."""
    algorithms = [name.strip() for name in names.split(",")]
    if len(algorithms) != 2 or not all(algorithms) or len(set(algorithms)) == 1:
        raise ValueError(f"--compare {names}: must name two algorithms, such as ring,halving_doubling")
    return {
        name: options.in_given_places(build(schedule.collective, name, schedule.num_ranks, size)) for name in algorithms
    }


def _recorded_run(path: Path) -> RecordedRun:
    """The run of --algorithm if that was given, else the first one of the file."""
    wanted = click.get_current_context().params["algorithm"]
    for run in Measurements.load(path).runs:
        if wanted in (None, run.algorithm):
            return run
    missing = f"recorded run of {wanted}" if wanted else "recorded run"
    raise ValueError(f"{path}: holds no {missing}: ringsim measure --record makes a file that does")
