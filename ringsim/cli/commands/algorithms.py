"""`ringsim algorithms` and `ringsim verify`: what there is, and whether it is right."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from ringsim.analysis import Cost, cost_of, format_costs
from ringsim.cli.options import COLLECTIVES, ranks_option, schedule_options
from ringsim.console import Choice, examples, json_option, print_result, progress_bar
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Proof, Schedule, require_few_transfers
from ringsim.schedule import verify as prove
from ringsim.text_table import wrap_text
from ringsim.units import plural


@click.command(epilog=examples("ringsim algorithms --collective all_gather --ranks 16"))
@click.option("--collective", type=Choice(COLLECTIVES), help="Only the algorithms of this collective are listed.")
@ranks_option
@json_option
def algorithms(collective: str | None, ranks: int, as_json: bool) -> None:
    """Lists the algorithms with their steps, transfers and bytes, beside the least that any algorithm needs (min).

    What is sent is that of the rank that sends most, as a multiple of the size of the whole tensor.
    """
    costs: list[Cost] = []
    skipped: list[dict[str, str]] = []
    keys = [key for key in ALGORITHMS if collective in (None, key[0].value)]
    with progress_bar(len(keys), "counting", delay_s=1.0) as progress:
        for owner, name in keys:
            make = partial(build, owner, name)
            try:
                require_few_transfers(make, ranks)
                costs.append(cost_of(make(ranks)))
            except ValueError as error:
                skipped.append({"collective": owner.value, "algorithm": name, "reason": str(error)})
            progress.update(1)
    listed = {"num_ranks": ranks, "algorithms": [cost.as_dict() for cost in costs], "skipped": skipped}
    print_result(_format(costs, skipped), listed, as_json)


def _format(costs: Sequence[Cost], skipped: Sequence[dict[str, str]]) -> str:
    notes = ["{collective} {algorithm} skipped: {reason}".format(**one) for one in skipped]
    return "\n".join([format_costs(costs), *(wrap_text(note, indent="  ") for note in notes)])


@click.command(epilog=examples("ringsim verify --algorithm halving_doubling --ranks 12"))
@schedule_options
@json_option
def verify(schedule: Schedule, as_json: bool) -> None:
    """Proves that an algorithm gives every rank what it must have, each contribution counted once.

    It also counts the transfers that bring nothing new: copies of what the receiver holds already.
    """
    with progress_bar(schedule.num_steps, "proving", delay_s=1.0) as progress:
        proof = prove(schedule, progress.update)
    print_result("\n".join(proof_lines(str(schedule), proof)), proof_dict(schedule, proof), as_json)


def proof_lines(name: str, proof: Proof) -> list[str]:
    """Returns what was proved, and if some transfers bring nothing new, how many, in a second line."""
    steps, transfers = plural(proof.num_steps, "step"), plural(proof.num_transfers, "transfer")
    lines = [f"{name}: correct ({steps}, {transfers})"]
    if proof.first_redundant:
        step, (src, dst, chunk, *_) = proof.first_redundant
        bring = "brings" if proof.num_redundant == 1 else "bring"
        first = f"the first is step {step}, {src} -> {dst}, chunk {chunk}"
        lines.append(f"{proof.num_redundant} of {transfers} {bring} nothing new: {first}")
    return lines


def proof_dict(schedule: Schedule, proof: Proof) -> dict[str, Any]:
    """Returns what was proved, for JSON."""
    return {
        "collective": schedule.collective.value,
        "algorithm": schedule.algorithm,
        "num_ranks": schedule.num_ranks,
        "num_chunks": schedule.num_chunks,
        "num_steps": proof.num_steps,
        "num_transfers": proof.num_transfers,
        "num_redundant": proof.num_redundant,
        "first_redundant": _redundant_dict(proof),
        "correct": True,
    }


def _redundant_dict(proof: Proof) -> dict[str, int] | None:
    if proof.first_redundant is None:
        return None
    step, transfer = proof.first_redundant
    return {"step": step, "src": transfer.src, "dst": transfer.dst, "chunk": transfer.chunk}
