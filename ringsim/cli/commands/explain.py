"""`ringsim explain`."""

from functools import partial

from ringsim import console
from ringsim.analysis import advise, bound_of, walk_through, why_not_explained
from ringsim.analysis import explain as explain_run
from ringsim.cli.options import in_given_places, library_choice, network_options, schedule_options, size_option
from ringsim.network import Network, load_network
from ringsim.registry import build
from ringsim.report import format_walkthrough, search_hint, summarise
from ringsim.schedule import Schedule
from ringsim.simulation import RULE
from ringsim.text_table import WIDTH, wrap_text


@console.command("ringsim explain --ranks 4 --size 1MiB --network gbe")
@partial(schedule_options, library=True)
@partial(network_options, load=load_network)
@size_option
@console.wide_option
@console.json_option
def explain(schedule: Schedule, network: Network, size: int, wide: bool, as_json: bool) -> None:
    """Explain a collective step by step: who sends which chunk and why, what it costs, and what would help.

    What would help is found by simulating it: better links, ranks and hosts one at a time, and all other algorithms at
    the same size. Where bandwidths bound the collective and all algorithms are far above the bound of the network,
    ringsim synthesize may find a faster schedule.
    """
    library, described = library_choice(schedule, network, size), network
    schedule = library.schedule if library else schedule
    is_too_large = why_not_explained(schedule) or (library and library.why_by_formula(RULE))
    if library and not is_too_large:
        network = library.network
    told = walk_through(schedule, network, size)
    explanation = None if is_too_large else explain_run(schedule, network, size)

    def build_other(name: str) -> Schedule:
        return in_given_places(build(schedule.collective, name, schedule.num_ranks, size))

    with console.Progress() as progress:
        advice = advise(schedule, described, size, build_other, progress.advance_to)
    bound = bound_of(schedule.collective, described, schedule.num_ranks, size)
    result = summarise(schedule, network, size, explanation, library=library)
    result |= {"walkthrough": told, "bound": bound.as_dict() if bound else None}
    text = format_walkthrough(result, told, explanation, advice, bound, wide=wide)
    if not library:  # NCCL executes no schedule that is given to it
        text += search_hint(advice, bound)
    if not wide:
        # What does not fit into a line is indented a little more than the line.
        indented = ((line, " " * (len(line) - len(line.lstrip()) + 2)) for line in text.splitlines())
        text = "\n".join(wrap_text(line, WIDTH, indent) for line, indent in indented)
    console.print_result(text, result | {"alternatives": advice.as_dicts()}, as_json)
