"""`ringsim simulate`."""

from functools import partial
from pathlib import Path

from click import option

from ringsim import console
from ringsim.analysis import explain, why_not_explained
from ringsim.cli.options import library_choice, network_options, schedule_options, size_option
from ringsim.network import Network, load_network
from ringsim.report import describe, ranks_as_dicts, ranks_table, summarise, trace_lines
from ringsim.schedule import Schedule
from ringsim.simulation import Runtime
from ringsim.text_table import WIDTH, wrap_text


@console.command(
    "ringsim simulate --algorithm ring --ranks 8 --bandwidth 10Gbit/s",
    "ringsim simulate --network dgx-h100-cluster --ranks 64 --trace run.json",
)
@partial(schedule_options, library=True)
@partial(network_options, load=load_network)
@size_option
@option(
    "--in-order",
    is_flag=True,
    help=(
        "Let each rank wait for one thing at a time and apply all it receives in step order, as our ranks on Gloo do."
    ),
)
@option("--per-rank", is_flag=True, help="Print a table of what each rank did with its time.")
@option("--trace", type=console.OUTPUT, help="Write all transfers to this file, for ui.perfetto.dev.")
@console.wide_option
@console.json_option
def simulate(
    schedule: Schedule,
    network: Network,
    size: int,
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
    library = library_choice(schedule, network, size, runtime=runtime)
    if library:
        schedule = library.schedule
    too_large = why_not_explained(schedule) or (library.why_by_formula(runtime) if library else None)
    if library and not too_large:
        network = library.network
    if too_large and (per_rank or trace):
        raise ValueError(f"{'--trace' if trace else '--per-rank'}: {too_large}")
    with console.progress_bar(schedule.num_transfers, "simulating", delay_s=1.0) as progress:
        explanation = None if too_large else explain(schedule, network, size, progress.update, runtime=runtime)
        result = summarise(schedule, network, size, explanation, progress.update, library, runtime=runtime)
    result["not_explained"] = too_large
    ranks = {"ranks": ranks_as_dicts(explanation)} if explanation and per_rank else {}
    width = None if wide else WIDTH
    parts = [describe(result, explanation, width)]
    parts += [wrap_text(f"  not explained: {too_large}", width, "  ")] if too_large else []
    parts += ["", ranks_table(explanation)] if explanation and per_rank else []
    console.print_result("\n".join(parts), result | ranks, as_json, trace)
    if explanation and trace:
        with console.output_file(trace) as file:
            file.writelines(trace_lines([("simulated", explanation.timeline)], str(trace), [explanation.blocked]))
