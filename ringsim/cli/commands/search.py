"""`ringsim order` and `ringsim synthesize`."""

import json
from functools import partial
from pathlib import Path

from click import option

from ringsim import console
from ringsim.analysis import BOUNDED, default_budget, explain, find_placement, summarise, why_not_explained
from ringsim.cli import options
from ringsim.cli.options import together
from ringsim.cli.selection import Selection, unplaced_options
from ringsim.limits import SEARCH_SECONDS
from ringsim.network import Network
from ringsim.report import format_placement, format_synthesis, placement_dict, synthesis_dict
from ringsim.schedule import Collective
from ringsim.synthesis import SearchOptions, SearchState
from ringsim.synthesis import synthesize as find_schedule
from ringsim.units import format_time

MAX_SECONDS = 7 * 24 * 3600.0


@console.command(
    "ringsim order --network gbe-racks --ranks 80 -o order.json",
    "ringsim simulate --network gbe-racks --ranks 80 --order order.json",
)
@unplaced_options
@options.network_options
@options.size_option
@option("--seed", type=console.IntRange(0), default=0, help="Random seed of the search.")
@option(
    "--budget",
    type=console.IntRange(1),
    help="Maximum number of placements to simulate [default: as many as take some seconds].",
)
@console.wide_option
@console.json_option
@option("-o", "--output", type=console.OUTPUT, help="Write the JSON object, which --order reads, to this file.")
def order(
    selection: Selection,
    network: Network,
    output: Path | None,
    wide: bool,
    as_json: bool,
    seed: int,
    budget: int | None,
) -> None:
    """Find a rank placement that is fast on an uneven network, such as one with hosts or slow links."""
    console.require_one_stdout(as_json, output)
    options.say_left_out(network)
    schedule, size = selection.schedule, selection.size
    budget = budget or default_budget(schedule)
    with console.ended_once(), console.progress_bar(budget, "simulating", delay_s=1.0) as progress:
        placement = find_placement(schedule, network, size, seed=seed, budget=budget, on_progress=progress.update)
    report = placement_dict(schedule, network, size, placement, seed)
    console.write_output(output, [f"{json.dumps(report)}\n"])
    console.print_result(format_placement(report, wide), report, as_json, output)


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        raise ValueError(f"{text!r} is not a number of seconds") from None
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"{text}: must be greater than 0 and at most {MAX_SECONDS:g}, since a search takes time")
    return seconds


@console.command(
    "ringsim synthesize --network ring-of-six.toml --ranks 6 -o found.xml",
    "ringsim simulate --network ring-of-six.toml --ranks 6 --algorithm found.xml",
)
@options.collective_option(BOUNDED)
@options.ranks_option
@options.network_options
@options.size_option
@together(
    "search",
    SearchOptions,
    option(
        "--chunks-per-rank",
        type=console.IntRange(1, 2**12),
        help="Number of chunks per rank, or of the root in a broadcast or reduce [default: several numbers are tried].",
    ),
    option(
        "--seconds",
        type=console.Quantity("seconds", _parse_seconds),
        default=f"{SEARCH_SECONDS:g}",
        help="Time limit of the search, in seconds, once it has found a schedule; Ctrl-C ends it earlier.",
    ),
    option("--seed", type=console.IntRange(0), default=0, help="Random seed of the search."),
)
@console.wide_option
@console.json_option
@options.picture_options("Draw the use of each link over time into this file: PNG, PDF or SVG.", "--plot")
@option("-o", "--output", "written", type=console.OUTPUT, help="Write the schedule to this file as MSCCL XML.")
def synthesize(
    collective: Collective,
    ranks: int,
    network: Network,
    size: int,
    search: SearchOptions,
    wide: bool,
    as_json: bool,
    picture: options.PictureFile,
    written: Path | None,
) -> None:
    """Find a fast schedule for a network, and report how far it is from what the network allows.

    Where it finds none that is faster, the fastest built-in algorithm is written. --algorithm takes the file that -o
    writes, in every command and in collectives.
    """
    from ringsim.formats import msccl_lines  # noqa: PLC0415

    console.require_one_stdout(as_json, written)
    options.say_left_out(network)
    with console.ended_once(), console.Progress() as progress:
        progress.begin("searching")
        on_state = partial(_show, progress)
        synthesis = find_schedule(collective, network, ranks, size, search, on_state=on_state)
        schedule = synthesis.schedule
        # Before the longer work, so that Ctrl-C does not lose it.
        console.write_output(written, msccl_lines(schedule, with_places=True))
        explanation = None if why_not_explained(schedule) else explain(schedule, network, size)
        run = summarise(schedule, network, size, explanation)
        if picture.path:
            from ringsim.report.plots.run_pages import draw_links  # noqa: PLC0415  takes most of a second to import
            from ringsim.report.plots.style import save_figure  # noqa: PLC0415

            progress.begin("drawing")
            known = explanation or explain(schedule, network, size)
            save_figure(lambda: draw_links(schedule, network, size, known), picture.path, picture.style)
            console.say_wrote(picture.path)
    result = synthesis_dict(synthesis, run, search.seed)
    console.print_result(format_synthesis(synthesis, run, explanation, wide=wide), result, as_json, written)


def _show(progress: console.Progress, state: SearchState) -> None:
    if progress.phase != state.phase:
        progress.begin(state.phase)
    text = f"best {format_time(state.best_s)}" if state.best_s < float("inf") else ""
    if text and state.bound_s:
        text += f", {state.best_s / state.bound_s:.3f} times the bound"
    progress.done = state.num_tried
    progress.update(0, text)
