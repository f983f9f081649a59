"""`ringsim synthesize`."""

from functools import partial
from pathlib import Path

from click import option

from ringsim import console
from ringsim.analysis import BOUNDED, explain, why_not_explained
from ringsim.cli.options import collective_option_of, network_options, ranks_option, size_option, style_option
from ringsim.network import Network
from ringsim.report import format_synthesis, synthesis_dict
from ringsim.schedule import Collective
from ringsim.synthesis import DEFAULT_SECONDS, SearchOptions, SearchState
from ringsim.synthesis import synthesize as search
from ringsim.units import format_time

MAX_SECONDS = 7 * 24 * 3600.0


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
@collective_option_of([collective.value for collective in BOUNDED])
@ranks_option
@network_options
@size_option
@option(
    "--chunks-per-rank",
    type=console.IntRange(1, 2**12),
    help="Number of chunks per rank, or of the root in a broadcast or reduce [default: several numbers are tried].",
)
@option(
    "--seconds",
    type=console.Quantity("seconds", _parse_seconds),
    default=f"{DEFAULT_SECONDS:g}",
    help="Time limit of the search, in seconds, once it has found a schedule; Ctrl-C ends it earlier.",
)
@option("--seed", type=console.IntRange(0), default=0, help="Random seed of the search.")
@console.wide_option
@console.json_option
@option("--plot", type=console.PICTURE, help="Draw the use of each link over time into this file: PNG, PDF or SVG.")
@style_option
@option("-o", "--output", type=console.OUTPUT, help="Write the schedule to this file as MSCCL XML.")
def synthesize(
    collective: str,
    ranks: int,
    network: Network,
    size: int,
    chunks_per_rank: int | None,
    seconds: float,
    seed: int,
    wide: bool,
    as_json: bool,
    plot: Path | None,
    style: str | None,
    output: Path | None,
) -> None:
    """Find a fast schedule for a network, and report how far it is from what the network allows.

    Where it finds none that is faster, the fastest built-in algorithm is written. --algorithm takes the file that -o
    writes, in every command and in collectives.
    """
    from ringsim.formats import msccl_lines  # noqa: PLC0415

    console.require_one_stdout(as_json, output)
    with console.ended_once(), console.Progress() as progress:
        progress.begin("searching")
        asked = Collective(collective), network, ranks, size, SearchOptions(seconds, chunks_per_rank, seed)
        synthesis = search(*asked, on_state=partial(_show, progress))
        if output:  # before what takes longer, so that Ctrl-C there does not lose it
            with console.output_file(output) as file:
                file.writelines(line.encode() for line in msccl_lines(synthesis.schedule, with_places=True))
        explanation = None if why_not_explained(synthesis.schedule) else explain(synthesis.schedule, network, size)
        result = synthesis_dict(synthesis, network, size, seed, explanation)
        if plot:
            from ringsim.report.plots.run_pages import draw_links  # noqa: PLC0415  takes most of a second to import
            from ringsim.report.plots.style import save_figure  # noqa: PLC0415

            progress.begin("drawing")
            known = explanation or explain(synthesis.schedule, network, size)
            save_figure(lambda: draw_links(synthesis.schedule, network, size, known), plot, style)
            console.say_wrote(plot)
    console.print_result(format_synthesis(synthesis, result, explanation, wide=wide), result, as_json, output)


def _show(progress: console.Progress, state: SearchState) -> None:
    """Shows how far the search is."""
    if progress.phase != state.phase:
        progress.begin(state.phase)
    text = f"best {format_time(state.best_s)}" if state.best_s < float("inf") else ""
    if text and state.bound_s:
        text += f", {state.best_s / state.bound_s:.3f} times the bound"
    progress.done = state.num_tried
    progress.update(0, text)
