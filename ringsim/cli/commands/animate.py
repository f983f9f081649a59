"""`ringsim animate`."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from click import option

from ringsim import console
from ringsim.analysis import RunView
from ringsim.calibration import RECORD_NOTE, compare_run
from ringsim.cli import options
from ringsim.measurements import Measurements, RecordedRun
from ringsim.network import AnyNetwork, load_network
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
    network: AnyNetwork,
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
    _refuse_together(compared, measured)
    if measured:
        views = [*compare_run(_recorded_run(measured), network, trusted).views]
    elif compared:
        others = _compared(compared, schedule, size)
        views = [
            RunView(*options.drawn_as_library(other, network, size, is_named=True), size, name=name)
            for name, other in others.items()
        ]
    else:
        views = [RunView(*options.drawn_as_library(schedule, network, size), size)]
    path = output or _default_path(views)
    with console.output_file(path) as file:
        file.write(animation_page(views, RECORD_NOTE if measured else "").encode())


def _refuse_together(compared: str | None, measured: Path | None) -> None:
    """Usage error for options of which one says what another would."""
    refused = []
    if compared and measured:
        refused.append(("--compare", "--measured"))
    if compared and options.is_given("algorithm"):
        refused.append(("--compare", "--algorithm"))
    if measured:
        refused += [("--measured", f"--{name}") for name in ("ranks", "size", "collective") if options.is_given(name)]
        refused += [("--measured", "--order")] if options.is_given("placement") else []
    if refused:
        raise click.UsageError("{} and {} exclude each other".format(*refused[0]), click.get_current_context())


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
    runs = Measurements.load(path).runs
    wanted = click.get_current_context().params["algorithm"] if options.is_given("algorithm") else None
    for run in runs:
        if wanted in (None, run.algorithm):
            return run
    missing = f"recorded run of {wanted}" if wanted else "recorded run"
    raise ValueError(f"{path}: holds no {missing}: ringsim measure --record makes a file that does")


def _default_path(views: Sequence[RunView]) -> Path:
    schedule = views[0].schedule
    names = "-".join(dict.fromkeys(view.name.partition(",")[0] for view in views))
    name = f"ringsim-{schedule.collective.value}-{names}-{schedule.num_ranks}"
    return Path(re.sub(r"[^\w.-]+", "-", name) + ".html")
