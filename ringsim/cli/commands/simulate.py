"""`ringsim simulate` and `ringsim explain`."""

from pathlib import Path

from click import option

from ringsim import console
from ringsim.analysis import advise, bound_of, summarise, times_of_ranks, walk_through
from ringsim.analysis import explain as explain_run
from ringsim.cli.options import network_options, size_option
from ringsim.cli.selection import Selection, library_options
from ringsim.network import Network
from ringsim.report import describe, format_walkthrough, ranks_table, search_hint, trace_lines
from ringsim.simulation import Runtime
from ringsim.text_table import WIDTH, wrap_text


@console.command(
    "ringsim simulate --algorithm ring --ranks 8 --bandwidth 10Gbit/s",
    "ringsim simulate --network dgx-h100-cluster --ranks 64 --trace run.json",
)
@library_options
@network_options
@size_option
@option(
    "--in-order",
    is_flag=True,
    help="Let each rank wait for one thing at a time and apply all it receives in step order, as our ranks on Gloo do.",
)
@option("--per-rank", is_flag=True, help="Print a table of what each rank did with its time.")
@option("--trace", type=console.OUTPUT, help="Write all transfers to this file, for ui.perfetto.dev.")
@console.wide_option
@console.json_option
def simulate(
    selection: Selection,
    network: Network,
    in_order: bool,
    per_rank: bool,
    trace: Path | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Simulate a collective, and explain how long it takes and why.

    Without --algorithm, the algorithm is the one that NCCL would choose if the network describes NCCL (ringsim
    networks) and its choice is known, and a ring otherwise.
    """
    console.require_one_stdout(as_json, trace)
    runtime = Runtime(in_order=in_order)
    schedule, network, library, too_large = selection.planned(network, runtime)
    if too_large and (per_rank or trace):
        raise ValueError(f"{'--trace' if trace else '--per-rank'}: {too_large}")
    with console.progress_bar(schedule.num_transfers, "simulating", delay_s=1.0) as progress:
        asked = schedule, network, selection.size
        explanation = None if too_large else explain_run(*asked, progress.update, runtime=runtime)
        run = summarise(*asked, explanation, progress.update, library, runtime=runtime)
    result = run.as_dict() | {"not_explained": too_large}
    result |= {"ranks": times_of_ranks(explanation)} if explanation and per_rank else {}
    width = None if wide else WIDTH
    parts = [describe(run, explanation, width)]
    parts += [wrap_text(f"  not explained: {too_large}", width, "  ")] if too_large else []
    parts += ["", ranks_table(explanation)] if explanation and per_rank else []
    console.print_result("\n".join(parts), result, as_json, trace)
    if explanation:
        timelines = [("simulated", explanation.timeline)]
        console.write_output(trace, trace_lines(timelines, str(trace), [explanation.blocked]))


@console.command("ringsim explain --ranks 4 --size 1MiB --network gbe")
@library_options
@network_options
@size_option
@console.wide_option
@console.json_option
def explain(selection: Selection, network: Network, wide: bool, as_json: bool) -> None:
    """Explain a collective step by step: who sends which chunk and why, what it costs, and what would help.

    What would help is found by simulating it: better links, ranks and hosts one at a time, and all other algorithms at
    the same size. Where bandwidths bound the collective and all algorithms are far above the bound of the network,
    ringsim synthesize may find a faster schedule.
    """
    size, described = selection.size, network
    schedule, network, library, too_large = selection.planned(network)
    walkthrough = walk_through(schedule, network, size)
    explanation = None if too_large else explain_run(schedule, network, size)
    with console.Progress() as progress:
        advice = advise(schedule, described, size, lambda name: selection.other(name).schedule, progress.advance_to)
    bound = bound_of(schedule.collective, described, schedule.num_ranks, size)
    run = summarise(schedule, network, size, explanation, library=library)
    result = run.as_dict() | {"walkthrough": walkthrough, "bound": bound.as_dict() if bound else None}
    text = format_walkthrough(run, walkthrough, explanation, advice, bound, wide=wide)
    if not library:  # which executes no schedule that is given to it
        text += search_hint(advice, bound)
    if not wide:
        # Continuation lines are indented a little more than the line.
        indented = ((line, " " * (len(line) - len(line.lstrip()) + 2)) for line in text.splitlines())
        text = "\n".join(wrap_text(line, WIDTH, indent) for line, indent in indented)
    console.print_result(text, result | {"alternatives": advice.as_dicts()}, as_json)
