"""`ringsim order`: a search for a better rank placement."""

import json
from pathlib import Path

from click import option

from ringsim import console
from ringsim.analysis import default_budget, find_placement
from ringsim.cli.options import algorithm_options, network_options, size_option
from ringsim.network import Network
from ringsim.report import format_placement, placement_dict
from ringsim.schedule import Schedule


@console.command(
    "ringsim order --network gbe-racks --ranks 80 -o order.json",
    "ringsim simulate --network gbe-racks --ranks 80 --order order.json",
)
@algorithm_options
@network_options
@size_option
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
    schedule: Schedule,
    network: Network,
    size: int,
    output: Path | None,
    wide: bool,
    as_json: bool,
    seed: int,
    budget: int | None,
) -> None:
    """Find a rank placement that is fast on an uneven network, such as one with hosts or slow links."""
    console.require_one_stdout(as_json, output)
    budget = budget or default_budget(schedule)
    with console.ended_once(), console.progress_bar(budget, "simulating", delay_s=1.0) as progress:
        placement = find_placement(schedule, network, size, seed=seed, budget=budget, on_progress=progress.update)
    report = placement_dict(schedule, network, size, placement, seed)
    if output:
        with console.output_file(output) as file:
            file.write(f"{json.dumps(report)}\n".encode())
    console.print_result(format_placement(report, wide), report, as_json, output)
