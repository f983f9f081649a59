"""`ringsim algorithms` and `ringsim verify`: what there is, and whether it is right."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import click

from ringsim.analysis import Cost, cost_of
from ringsim.cli.options import COLLECTIVES, ranks_option, schedule_options
from ringsim.console import Choice, examples, json_option, print_result, progress_bar
from ringsim.registry import ALGORITHMS, build, summary_of
from ringsim.schedule import Proof, Schedule, require_few_transfers
from ringsim.schedule import verify as prove
from ringsim.text_table import align_columns, wrap_text
from ringsim.units import plural


@click.command(epilog=examples("ringsim algorithms --collective all_gather --ranks 16"))
@click.option("--collective", type=Choice(COLLECTIVES), help="Only the algorithms of this collective are listed.")
@ranks_option
@json_option
def algorithms(collective: str | None, ranks: int, as_json: bool) -> None:
    """Lists the algorithms of each collective with their steps, transfers and bytes, and what each of them does.

    sent/size: what the rank that sends most sends, as a multiple of the size of the whole tensor. Above the algorithms
    of a collective stands the least that any of them can do with.
    """
    costs: list[Cost] = []
    summaries: list[str] = []
    skipped: list[dict[str, str]] = []
    keys = [key for key in ALGORITHMS if collective in (None, key[0].value)]
    with progress_bar(len(keys), "counting", delay_s=1.0) as progress:
        for owner, name in keys:
            make = partial(build, owner, name)
            try:
                require_few_transfers(make, ranks)
                costs.append(cost_of(make(ranks)))
                summaries.append(summary_of(owner, name))
            except ValueError as error:
                skipped.append({"collective": owner.value, "algorithm": name, "reason": str(error)})
            progress.update(1)
    dicts = [cost.as_dict() | {"summary": summary} for cost, summary in zip(costs, summaries, strict=True)]
    notes = [wrap_text("{collective} {algorithm} skipped: {reason}".format(**one), indent="  ") for one in skipped]
    listed = {"num_ranks": ranks, "algorithms": dicts, "skipped": skipped}
    print_result("\n".join([*_lines(costs, summaries), *notes]), listed, as_json)


def _lines(costs: Sequence[Cost], summaries: Sequence[str]) -> Iterator[str]:
    """Yield the algorithms by their collective; below the row of each, what it does."""
    header, *rows = align_columns([_HEADER, *map(_row, costs)], "lr")
    collective = None
    for cost, row, summary in zip(costs, rows, summaries, strict=True):
        if cost.schedule.collective is not collective:
            yield from ([""] if collective else [])
            collective = cost.schedule.collective
            yield wrap_text(
                f"{collective.value} on {plural(cost.schedule.num_ranks, 'rank')}: some rank must send at least "
                f"{cost.sent_bound:.4g} times the size; if a rank sends to one other in a step, there must be at least "
                f"{plural(cost.steps_bound, 'step')}"
            )
            yield header
        yield row
        yield wrap_text(f"  {summary}", indent="  ")


_HEADER = ("algorithm", "chunks", "steps", "transfers", "sent/size")


def _row(cost: Cost) -> tuple[str, ...]:
    schedule = cost.schedule
    sent = f"{cost.sent:.3f}" if cost.sent < 100 else f"{cost.sent:.6g}"
    counts = (schedule.num_chunks, schedule.num_steps, cost.num_transfers)
    return schedule.algorithm, *(str(count) for count in counts), sent


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
    """Return what was proved, and if some transfers bring nothing new, how many, in a second line."""
    steps, transfers = plural(proof.num_steps, "step"), plural(proof.num_transfers, "transfer")
    lines = [f"{name}: correct ({steps}, {transfers})"]
    if proof.first_redundant:
        step, (src, dst, chunk, *_) = proof.first_redundant
        bring = "brings" if proof.num_redundant == 1 else "bring"
        first = f"the first is step {step}, {src} -> {dst}, chunk {chunk}"
        lines.append(f"{proof.num_redundant} of {transfers} {bring} nothing new: {first}")
    return lines


def proof_dict(schedule: Schedule, proof: Proof) -> dict[str, Any]:
    """Return what was proved, for JSON."""
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
