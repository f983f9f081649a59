"""`ringsim algorithms` and `ringsim verify`: what there is, and whether it is right."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from ringsim.analysis import Cost, NetworkBound, bound_of, cost_of
from ringsim.cli.options import COLLECTIVES, NETWORK, ranks_option, refuse_without, schedule_options, size_option
from ringsim.console import Choice, examples, json_option, print_result, progress_bar
from ringsim.files import finite_or_none
from ringsim.network import AnyNetwork, load_network
from ringsim.registry import ALGORITHMS, build, summary_of
from ringsim.report import bound_reason
from ringsim.schedule import Collective, Proof, Schedule, require_few_transfers
from ringsim.schedule import verify as prove
from ringsim.simulation import lists_more_than, predict_time
from ringsim.text_table import align_columns, wrap_text
from ringsim.units import format_size, format_time, plural

MAX_TRANSFERS = 2**19  # of an algorithm that is simulated, if each of them has to be looked at


@click.command(
    epilog=examples(
        "ringsim algorithms --collective all_gather --ranks 16", "ringsim algorithms --network gbe-racks --ranks 80"
    )
)
@click.option(
    "--collective",
    type=Choice(COLLECTIVES),
    metavar="NAME",
    help=f"List only the algorithms of this collective, one of {', '.join(COLLECTIVES)}.",
)
@ranks_option
@click.option(
    "--network",
    "name",
    type=NETWORK,
    help="Also list the time of each algorithm on this network, one that ringsim networks lists or "
    "FILE.toml, and the least time that the network allows.",
)
@size_option
@json_option
def algorithms(collective: str | None, ranks: int, name: str | None, size: int, as_json: bool) -> None:
    """List the algorithms of each collective with their steps, transfers and bytes, and what each of them does.

    sent/size: what the rank that sends most sends, as a multiple of the size of the whole tensor. The lines above
    the algorithms of a collective give lower bounds: of sent/size, of the steps, and with --network of the time.
    """
    refuse_without("size", name, "network")
    network = load_network(name) if name else None
    if network:
        network.topology(ranks)  # whether there is room for so many
    costs: list[Cost] = []
    times_s: list[float | None] = []
    summaries: list[str] = []
    skipped: list[dict[str, str]] = []
    keys = [key for key in ALGORITHMS if collective in (None, key[0].value)]
    with progress_bar(len(keys), "counting", delay_s=1.0) as progress:
        for owner, algorithm in keys:
            make = partial(build, owner, algorithm, size_bytes=size) if network else partial(build, owner, algorithm)
            try:
                require_few_transfers(make, ranks)
                costs.append(cost_of(make(ranks)))
                times_s.append(_time_s(costs[-1].schedule, network, size))
                summaries.append(summary_of(owner, algorithm))
            except ValueError as error:
                skipped.append({"collective": owner.value, "algorithm": algorithm, "reason": str(error)})
            progress.update(1)
    bounds = _bounds(costs, network, size)
    dicts = [
        cost.as_dict() | {"summary": summary} | ({"time_s": finite_or_none(time_s)} if network else {})
        for cost, summary, time_s in zip(costs, summaries, times_s, strict=True)
    ]
    notes = [wrap_text("{collective} {algorithm} skipped: {reason}".format(**one), indent="  ") for one in skipped]
    listed = {"num_ranks": ranks, "algorithms": dicts, "skipped": skipped}
    if network:
        known = {owner.value: bound.as_dict() if bound else None for owner, bound in bounds.items()}
        listed |= {"network": network.as_dict(), "size_bytes": size, "bounds": known}
    lines = _lines(costs, summaries, times_s if network else None, bounds, size)
    print_result("\n".join([*lines, *notes]), listed, as_json)


def _time_s(schedule: Schedule, network: AnyNetwork | None, size_bytes: int) -> float | None:
    """Return the simulated time; None without a network, and where it would take too long to simulate."""
    if network is None or lists_more_than(MAX_TRANSFERS, schedule, network, size_bytes):
        return None
    return predict_time(schedule, network, size_bytes)


def _bounds(
    costs: Sequence[Cost], network: AnyNetwork | None, size_bytes: int
) -> dict[Collective, NetworkBound | None]:
    """Return the least time of each collective on the network; nothing without one."""
    num_ranks = {cost.schedule.collective: cost.schedule.num_ranks for cost in costs}
    return {owner: bound_of(owner, network, ranks, size_bytes) for owner, ranks in num_ranks.items()} if network else {}


def _lines(
    costs: Sequence[Cost],
    summaries: Sequence[str],
    times_s: Sequence[float | None] | None,
    bounds: Mapping[Collective, NetworkBound | None],
    size_bytes: int,
) -> Iterator[str]:
    """Yield the algorithms by their collective; below the row of each, what it does."""
    table: list[tuple[str, ...]] = [_HEADER, *map(_row, costs)]
    if times_s is not None:
        table = [(*row, cell) for row, cell in zip(table, ["time", *map(_time_cell, times_s)], strict=True)]
    header, *rows = align_columns(table, "lr")
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
            if bound := bounds.get(collective):
                yield wrap_text(
                    f"no algorithm takes less than {format_time(bound.time_s)} for {format_size(size_bytes)} here: "
                    f"{bound_reason(bound)}"
                )
            yield header
        yield row
        yield wrap_text(f"  {summary}", indent="  ")


_HEADER = ("algorithm", "chunks", "steps", "transfers", "sent/size")


def _time_cell(time_s: float | None) -> str:
    return "-" if time_s is None else format_time(time_s) if math.isfinite(time_s) else "never"


def _row(cost: Cost) -> tuple[str, ...]:
    schedule = cost.schedule
    sent = f"{cost.sent:.3f}" if cost.sent < 100 else f"{cost.sent:.6g}"
    counts = (schedule.num_chunks, schedule.num_steps, cost.num_transfers)
    return schedule.algorithm, *(str(count) for count in counts), sent


@click.command(epilog=examples("ringsim verify --algorithm halving_doubling --ranks 12"))
@schedule_options
@json_option
def verify(schedule: Schedule, as_json: bool) -> None:
    """Prove that an algorithm gives every rank what it must have, each contribution counted once.

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
