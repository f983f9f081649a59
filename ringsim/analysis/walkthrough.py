"""`walk_through`: a schedule step by step in words, and its costs compared with the bounds for any algorithm."""

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from ringsim.analysis.candidates import cost_of
from ringsim.analysis.holdings import HeldStep, find_phases, hosts_of_network, num_shares, walk_holdings
from ringsim.network import Network
from ringsim.schedule import NO_ROW, Collective, Ints, Schedule, flow, verify
from ringsim.text_table import load_template
from ringsim.units import format_size, plural

MAX_COUNTS = 2**24  # chunks of all ranks, times ranks: tens of MiB, and a few seconds
MAX_CLAUSES = 4  # in the sentence of a step that follows no rule
MAX_NAMED = 8  # chunks and ranks that are listed; more are counted


class Action(IntEnum):
    """The ways in which a receiver applies a chunk."""

    ADD_SHARE = 0  # it held only its own contribution
    ADD_SUM = 1
    COPY = 2


COUNT = ": {held} of {needed}"
COMPLETE = ", complete"  # added where the chunk is finished
TRANSFER_TEMPLATES = (
    "rank {dst} adds its contribution to chunk {chunk} from rank {src}" + COUNT,
    "rank {dst} adds chunk {chunk} from rank {src} to its own sum" + COUNT,
    "rank {dst} copies chunk {chunk} from rank {src}" + COUNT,
)
_PART = "a part of the data"
_DOES = ("adds its contribution", "adds it to its sum", "copies it")  # of a receiver, by `Action`

_OWN = "every rank starts with its contribution to every chunk; at the end"
_SUM = "must hold the sum of all {ranks} contributions to"
_GOALS: dict[Collective, str] = {
    Collective.ALL_REDUCE: f"{_OWN} every rank {_SUM} every chunk",
    Collective.REDUCE_SCATTER: f"{_OWN} each rank {_SUM} its part of the data",
    Collective.REDUCE: f"{_OWN} rank 0 {_SUM} every chunk",
    Collective.ALL_GATHER: "every rank has a part of the data; at the end every rank must hold all parts",
    Collective.BROADCAST: "rank 0 has all of the data; at the end every rank must hold it",
    Collective.GATHER: "every rank has a part of the data; at the end rank 0 must hold all parts",
    Collective.SCATTER: "rank 0 has all of the data; at the end every rank must hold its part",
    Collective.ALL_TO_ALL: "every rank has a block for every rank; at the end every rank must hold the blocks for it",
}


def walk_through(schedule: Schedule, network: Network, size_bytes: int) -> dict[str, Any]:
    """Return the schedule in words, for JSON; of a very large one only the costs.

    Its keys are goal, phases, costs (sentences) and skipped (why no step is listed; None if all are). A phase has the
    rule of its steps `first` to `last`, empty if no formula holds for all of them. A step has a sentence, and as an
    example the chunks of each rank where the sentence gives a rule for them.

    Raises ScheduleError if the schedule is not correct.
    """
    num_ranks, num_chunks, phases, skipped = schedule.num_ranks, schedule.num_chunks, [], None
    if num_ranks**2 * num_chunks > MAX_COUNTS:
        shares = f"the contributions of {num_ranks:,} ranks in {num_chunks:,} chunks are too many to examine"
        skipped = f"no step is listed, because {shares}: use fewer ranks"
    else:
        phases = tell_phases(schedule, network)
    costs = _costs(schedule, size_bytes, phases)
    return {"goal": goal_sentence(schedule), "phases": phases, "costs": costs, "skipped": skipped}


def tell_phases(schedule: Schedule, network: Network) -> list[dict[str, Any]]:
    """Return the phases with their steps, see `walk_through`. Raises ScheduleError if the schedule is not correct."""
    verify(schedule)
    steps = list(walk_holdings(schedule))
    told = [dict(zip(_STEP_KEYS, (held.index, *tell_step(schedule, held)), strict=True)) for held in steps]
    return [
        phase._asdict() | {"rule": _rule(schedule, *phase[1:]), "steps": told[phase.first : phase.last + 1]}
        for phase in find_phases(schedule, steps, hosts_of_network(network, schedule.num_ranks)[1])
    ]


_STEP_KEYS = ("number", "sentence", "example")


def goal_sentence(schedule: Schedule) -> str:
    """Return what the ranks have before the first step, and what they must hold after the last."""
    return _GOALS[schedule.collective].format(ranks=schedule.num_ranks)


def _actions(held: HeldStep) -> Ints:
    """Return the `Action` of each transfer of a step, (num_transfers,)."""
    adds = np.where(held.before == 1, int(Action.ADD_SHARE), int(Action.ADD_SUM))
    return np.where(held.step.reduce, adds, int(Action.COPY))


def templates(schedule: Schedule) -> tuple[str, ...]:
    """Return the sentences of transfers, one for each `Action`, with the names of what is to be filled in."""
    reduces = schedule.collective.reduces
    return TRANSFER_TEMPLATES if reduces else tuple(text.removesuffix(COUNT) for text in TRANSFER_TEMPLATES)


def tell_step(schedule: Schedule, held: HeldStep) -> tuple[str, str]:
    """Return a sentence on a step, by a rule for all ranks or sender by sender, and an example where it needs one."""
    step, num_ranks = held.step, schedule.num_ranks
    if len(step) <= 1:
        return (_transfer_sentence(schedule, held) if len(step) else "nothing is sent"), ""
    sends: dict[tuple[int, int], list[int]] = {}
    for src, dst, chunk, *_ in sorted(step):
        sends.setdefault((src, dst), []).append(chunk)
    names = [_name_chunks(numbers, schedule.num_chunks) for numbers in sends.values()]
    subject, example = _to_one_each(schedule, sends), ""
    has_one_receiver = bool(subject) or len(np.unique(step.dst)) == 1
    if subject:
        # The sentence has it all if all send the same, or rank r chunk r; many ranks need no example of a formula.
        is_told = len(set(names)) == 1 or "chunk r " in subject or (num_ranks > MAX_NAMED and "chunk (" in subject)
        example = "" if is_told else _listed([f"rank {rank}: {name}" for rank, name in enumerate(names)], MAX_NAMED)
    elif len(sends) == num_ranks * (num_ranks - 1):
        content = _content(sends, names)
        subject = f"every rank r sends {content} to every other rank s"
        example = _listed(_clauses(sends, names), MAX_NAMED) if content == _PART else ""
    else:
        subject = _listed(_clauses(sends, names), MAX_CLAUSES)
    return subject + _does(schedule, held, ", which" if has_one_receiver else "; each receiver"), example


def _transfer_sentence(schedule: Schedule, held: HeldStep) -> str:
    """Return such as "rank 2 adds its contribution to chunk 0 from rank 1: 3 of 4", for a step of one transfer."""
    (src, dst, chunk, *_), template = next(iter(held.step)), templates(schedule)[int(_actions(held)[0])]
    sentence = template.format(src=src, dst=dst, chunk=chunk, held=held.after[0], needed=num_shares(schedule))
    return sentence + (COMPLETE if held.finished[0] and schedule.collective.reduces else "")


def _to_one_each(schedule: Schedule, sends: dict[tuple[int, int], list[int]]) -> str:
    """Return to whom every rank r sends which chunk, as formulas of r; "" unless each sends to one, as far ahead."""
    src, dst = np.array(list(sends)).T
    num_ranks, chunks = schedule.num_ranks, list(sends.values())
    ahead, flipped = _common_offset(dst, src, num_ranks), set((dst ^ src).tolist())
    if not np.array_equal(src, np.arange(num_ranks)) or (ahead is None and len(flipped) > 1):
        return ""
    hop = _near(ahead, num_ranks) if ahead is not None else 0
    receiver = f"rank r xor {flipped.pop()}" if len(flipped) == 1 else f"rank {_modular(hop, num_ranks)}"
    low, high = min(map(len, chunks)), max(map(len, chunks))
    content = plural(low, "chunk") if low == high else f"{low} to {high} chunks"
    if low == schedule.num_chunks:
        content = "all of the data"
    elif high == 1 and schedule.num_chunks == num_ranks:
        offset = _common_offset(np.concatenate(chunks), src, num_ranks)
        if offset is not None:  # counted against the direction of travel, so that it grows from step to step
            content = f"chunk {_modular(offset if hop < 0 else -(-offset % num_ranks), num_ranks)}"
    return f"every rank r sends {content} to {'the other' if num_ranks == 2 else receiver}"


def _content(sends: dict[tuple[int, int], list[int]], names: Sequence[str]) -> str:
    """Return what every rank r sends to every other rank s."""
    if len(set(names)) == 1:
        return names[0]
    if all(chunks == [src] for (src, _), chunks in sends.items()):
        return "chunk r"
    return "chunk s" if all(chunks == [dst] for (_, dst), chunks in sends.items()) else _PART


def _clauses(sends: dict[tuple[int, int], list[int]], names: Sequence[str]) -> list[str]:
    """Return who sends what to whom: one clause for the receivers of the same, and one for all that send them that."""
    receivers: dict[tuple[int, str], list[int]] = {}
    for (src, dst), name in zip(sends, names, strict=True):
        receivers.setdefault((src, name), []).append(dst)
    senders: dict[tuple[str, str], list[int]] = {}
    for (src, name), ranks in receivers.items():
        senders.setdefault((name, name_numbers("rank", ranks)), []).append(src)
    return [
        f"{name_numbers('rank', ranks)} {'sends' if len(ranks) == 1 else 'send'} {name} to {to}"
        for (name, to), ranks in senders.items()
    ]


def _listed(clauses: Sequence[str], most: int) -> str:
    """Return the first `most` clauses, and how many more there are."""
    more = [f"and so on for {len(clauses) - most} more"] if len(clauses) > most else []
    return ", ".join([*clauses[:most], *more])


def _does(schedule: Schedule, held: HeldStep, receiver: str) -> str:
    """Return what happens to the chunks, and how many shares are in them then, if it is the same number in all."""
    present, counts, num_added = set(_actions(held).tolist()), set(held.after.tolist()), int(held.step.reduce.sum())
    does = f"{receiver} {_DOES[min(present) if len(present) == 1 else Action.ADD_SUM]}"
    if 0 < num_added < len(held.step):
        does = f"; {num_added} are added and {len(held.step) - num_added} copied"
    if not schedule.collective.reduces or len(counts) > 1:
        return does
    return does + COUNT.format(held=counts.pop(), needed=num_shares(schedule)) + COMPLETE * bool(held.finished.all())


def _rule(schedule: Schedule, first: int, last: int) -> str:
    """Return the one formula by which every rank goes round a ring in all of these steps, and why it is that."""
    num_ranks, start = schedule.num_ranks, _ring_offsets(schedule, first)
    if start is None or start[0] not in (1, num_ranks - 1) or first == last:
        return ""
    hop, offset = start
    ahead = 1 if hop == 1 else -1
    # One step later a rank passes on what came from the rank behind it: the chunk one further back.
    expected = ((hop, (offset - ahead * later) % num_ranks) for later in range(last - first + 1))
    if any(_ring_offsets(schedule, first + later) != offsets for later, offsets in enumerate(expected)):
        return ""
    step = schedule.steps[first]
    did = "received and added its contribution to" if step.reduce.all() else "received"
    rows = flow(schedule)
    begun = slice(*np.searchsorted(rows.step, [first, first + 1]))
    always = first > 0 and (np.append(rows.step, NO_ROW)[rows.reads[begun]] == first - 1).all()
    constant = _near(offset + ahead * (first + 1), num_ranks)  # people count steps from 1
    back, on = ("-", "+") if ahead > 0 else ("+", "-")
    sends = f"rank r sends chunk (r {back} s{_plus(constant)}) mod {num_ranks} to rank (r {on} 1) mod {num_ranks}"
    why = ("" if always else "after the first step, ") + f"the chunk that it {did} in the step before"
    return f"in step s = {first + 1} to {last + 1} {sends}: {why}"


def _ring_offsets(schedule: Schedule, index: int) -> tuple[int, int] | None:
    """Return by how much receiver and chunk are ahead of each sender, modulo the ranks; None if they differ."""
    step, num_ranks = schedule.steps[index], schedule.num_ranks
    if schedule.num_chunks != num_ranks or not np.array_equal(np.sort(step.src), np.arange(num_ranks)):
        return None
    hop, offset = (_common_offset(column, step.src, num_ranks) for column in (step.dst, step.chunk))
    return None if hop is None or offset is None else (hop, offset)


def _common_offset(numbers: Ints, senders: Ints, num_ranks: int) -> int | None:
    """Return by how much each number is ahead of its sender's, modulo the ranks; None if it is not the same for all."""
    offsets = np.unique((numbers - senders) % num_ranks)
    return int(offsets[0]) if len(offsets) == 1 else None


def _near(offset: int, num_ranks: int) -> int:
    """Return the offset modulo the number of ranks that is closest to 0: -1 rather than num_ranks - 1."""
    offset %= num_ranks
    return offset - num_ranks if offset > num_ranks // 2 else offset


def _modular(offset: int, num_ranks: int) -> str:
    """Return such as (r - 1) mod 4, or r if the offset is 0."""
    return f"(r{_plus(offset)}) mod {num_ranks}" if offset else "r"


def _plus(offset: int) -> str:
    """Return what a formula adds: " + 2", " - 1", or nothing for 0."""
    return f" {'-' if offset < 0 else '+'} {abs(offset)}" if offset else ""


def _name_chunks(numbers: Sequence[int], num_chunks: int) -> str:
    return "all of the data" if len(numbers) == num_chunks else name_numbers("chunk", numbers)


def name_numbers(noun: str, numbers: Sequence[int]) -> str:
    """Return such as rank 3, chunks 0 to 7, chunks 0, 3 and 5; or 9 chunks if they are scattered. numbers: sorted."""
    *others, last = numbers
    if not others:
        return f"{noun} {last}"
    if len(others) > 1 and last - others[0] == len(others):
        return f"{noun}s {others[0]} to {last}"
    return (
        plural(len(numbers), noun) if len(numbers) > MAX_NAMED else f"{noun}s {', '.join(map(str, others))} and {last}"
    )


def _costs(schedule: Schedule, size_bytes: int, phases: Sequence[dict[str, Any]]) -> list[str]:
    """Return sentences that compare the number of steps and the bytes sent with the bounds for any algorithm.

    Between them, one explains a ring, if all phases have the rule of one (see `walk_through`).
    """
    filters = {"plural": plural, "size": format_size}
    template = load_template(Path(__file__).with_name("costs.j2"), filters, trim_blocks=True)
    return template.render(schedule=schedule, cost=cost_of(schedule), phases=phases, size_bytes=size_bytes).splitlines()
