"""Steps and transfers in words: who sends which chunk to whom, by which rule, and what it adds up to."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ringsim.analysis.holdings import HeldStep, num_shares
from ringsim.schedule import Collective, Ints, Schedule
from ringsim.units import plural

MAX_CLAUSES = 4  # in the sentence of a step that follows no rule
MAX_NAMED = 8  # scattered chunks that are named, and senders whose chunks are listed; more are counted


class Action(IntEnum):
    """The ways in which a receiver applies a chunk; `TRANSFER_TEMPLATES` says it in words."""

    ADD_SHARE = 0  # it held only its own contribution
    ADD_SUM = 1
    COPY = 2


TRANSFER_TEMPLATES = (
    "rank {dst} adds its contribution to chunk {chunk} from rank {src}: {held} of {needed}",
    "rank {dst} adds chunk {chunk} from rank {src} to its own sum: {held} of {needed}",
    "rank {dst} copies chunk {chunk} from rank {src}: {held} of {needed}",
)
COPY_TEMPLATE = "rank {dst} copies chunk {chunk} from rank {src}"  # where nothing is summed
COMPLETE = ", complete"  # added where the chunk is finished
DOES = ("adds its contribution", "adds it to its sum", "copies it")  # of a receiver, by `Action`

_GOALS: dict[Collective, str] = {
    Collective.ALL_REDUCE: "every rank starts with its contribution to every chunk; at the end every rank must hold "
    "the sum of all {ranks} contributions to every chunk",
    Collective.REDUCE_SCATTER: "every rank starts with its contribution to every chunk; at the end each rank must hold "
    "the sum of all {ranks} contributions to its part of the data",
    Collective.REDUCE: "every rank starts with its contribution to every chunk; at the end rank 0 must hold the sum of "
    "all {ranks} contributions to every chunk",
    Collective.ALL_GATHER: "every rank has a part of the data; at the end every rank must hold all parts",
    Collective.BROADCAST: "rank 0 has all of the data; at the end every rank must hold it",
    Collective.GATHER: "every rank has a part of the data; at the end rank 0 must hold all parts",
    Collective.SCATTER: "rank 0 has all of the data; at the end every rank must hold its part",
    Collective.ALL_TO_ALL: "every rank has a block for every rank; at the end every rank must hold the blocks for it",
}


def goal_sentence(schedule: Schedule) -> str:
    """Return what the ranks have before the first step, and what they must hold after the last."""
    return _GOALS[schedule.collective].format(ranks=schedule.num_ranks)


def actions(held: HeldStep) -> Ints:
    """Return the `Action` of each transfer of a step, (num_transfers,)."""
    adds = np.where(held.before == 1, int(Action.ADD_SHARE), int(Action.ADD_SUM))
    return np.where(held.step.reduce, adds, int(Action.COPY))


def templates(schedule: Schedule) -> tuple[str, ...]:
    """Return the sentences of transfers, one for each `Action`, with the names of what is to be filled in."""
    return TRANSFER_TEMPLATES if schedule.collective.reduces else (*TRANSFER_TEMPLATES[:2], COPY_TEMPLATE)


def transfer_sentence(schedule: Schedule, held: HeldStep, row: int) -> str:
    """Return such as "rank 2 adds its contribution to chunk 0 from rank 1: 3 of 4"."""
    step = held.step
    template = templates(schedule)[int(actions(held)[row])]
    sentence = template.format(
        src=step.src[row], dst=step.dst[row], chunk=step.chunk[row], held=held.after[row], needed=num_shares(schedule)
    )
    return sentence + (COMPLETE if held.finished[row] and schedule.collective.reduces else "")


class ToldStep(NamedTuple):
    """A step in words. example: the chunks of each rank where the sentence gives a rule for them; else empty."""

    number: int
    sentence: str
    example: str = ""


def tell_step(schedule: Schedule, held: HeldStep) -> ToldStep:
    """Return what happens in a step: by a rule for all ranks where there is one, else sender by sender."""
    step = held.step
    if not len(step):
        return ToldStep(held.index, "nothing is sent")
    if len(step) == 1:
        return ToldStep(held.index, transfer_sentence(schedule, held, 0))
    pairs, number = np.unique(np.column_stack([step.src, step.dst]), axis=0, return_inverse=True)
    chunks = [np.sort(step.chunk[number.ravel() == pair]) for pair in range(len(pairs))]
    names = [_name_chunks(numbers, schedule.num_chunks) for numbers in chunks]
    clauses = _clauses(pairs, names)
    subject, example = _to_one_each(schedule, pairs, chunks), ""
    if subject:
        example = _listed([f"rank {rank}: {name}" for rank, name in enumerate(names)], MAX_NAMED)
    elif len(pairs) == schedule.num_ranks * (schedule.num_ranks - 1) > 2:
        subject, example = _to_all_others(pairs, chunks, names), _listed(clauses, MAX_NAMED)
    else:
        subject = _listed(clauses, MAX_CLAUSES)
    # The sentence has it all if all send the same, or rank r chunk r; many ranks need no example of a formula.
    if len(set(names)) == 1 or "chunk r " in subject or (schedule.num_ranks > MAX_NAMED and "chunk (" in subject):
        example = ""
    has_one_receiver = subject.startswith("every rank r sends") or len(np.unique(step.dst)) == 1
    receiver = ", which" if has_one_receiver else "; each receiver"
    return ToldStep(held.index, f"{subject}{_does(schedule, held, receiver)}", example)


def _to_one_each(schedule: Schedule, pairs: Ints, chunks: Sequence[Ints]) -> str:
    """Return to whom every rank r sends which chunk, as formulas of r; "" unless each sends to one, as far ahead."""
    (src, dst), num_ranks = pairs.T, schedule.num_ranks
    if not np.array_equal(src, np.arange(num_ranks)):
        return ""
    ahead, flipped = common_offset(dst, src, num_ranks), np.unique(dst ^ src)
    if num_ranks == 2:
        receiver = "the other"
    elif len(flipped) == 1:
        receiver = f"rank r xor {flipped[0]}"
    elif ahead is not None:
        receiver = f"rank {modular(near(ahead, num_ranks), num_ranks)}"
    else:
        return ""
    counts = [len(numbers) for numbers in chunks]
    low, high = min(counts), max(counts)
    content = plural(low, "chunk") if low == high else f"{low} to {high} chunks"
    if low == schedule.num_chunks:
        content = "all of the data"
    elif high == 1 and schedule.num_chunks == num_ranks:
        offset = common_offset(np.concatenate(chunks), src, num_ranks)
        if offset is not None:
            # Counted against the direction of travel, so that it grows from step to step.
            is_backward = ahead is not None and near(ahead, num_ranks) < 0
            content = f"chunk {modular(offset if is_backward else -(-offset % num_ranks), num_ranks)}"
    return f"every rank r sends {content} to {receiver}"


def _to_all_others(pairs: Ints, chunks: Sequence[Ints], names: Sequence[str]) -> str:
    if len(set(names)) == 1:
        return f"every rank sends {names[0]} to every other rank"
    if all(len(numbers) == 1 for numbers in chunks):
        numbers = np.concatenate(chunks)
        if np.array_equal(numbers, pairs[:, 0]):
            return "every rank r sends chunk r to every other rank"
        if np.array_equal(numbers, pairs[:, 1]):
            return "every rank sends chunk r to rank r, for every other rank r"
    return "every rank sends a part of the data to every other rank"


def _clauses(pairs: Ints, names: Sequence[str]) -> list[str]:
    """Return who sends what to whom: one clause for the receivers of the same, and one for all that send them that."""
    receivers: dict[tuple[int, str], list[int]] = {}
    for (src, dst), name in zip(pairs.tolist(), names, strict=True):
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
    present = sorted(set(actions(held).tolist()))
    does = f"{receiver} {DOES[present[0] if len(present) == 1 else Action.ADD_SUM]}"
    if len(present) > 1 and Action.COPY in present:
        num_added = int(held.step.reduce.sum())
        does = f"; {num_added} are added and {len(held.step) - num_added} copied"
    counts = np.unique(held.after).tolist()
    if not schedule.collective.reduces or len(counts) != 1:
        return does
    return f"{does}: {counts[0]} of {num_shares(schedule)}{COMPLETE if held.finished.all() else ''}"


def common_offset(numbers: Ints, senders: Ints, num_ranks: int) -> int | None:
    """Return by how much each number is ahead of its sender's, modulo the ranks; None if it is not the same for all."""
    offsets = np.unique((numbers - senders) % num_ranks)
    return int(offsets[0]) if len(offsets) == 1 else None


def near(offset: int, num_ranks: int) -> int:
    """Return the offset modulo the number of ranks that is closest to 0: -1 rather than num_ranks - 1."""
    offset %= num_ranks
    return offset - num_ranks if offset > num_ranks // 2 else offset


def modular(offset: int, num_ranks: int) -> str:
    """Return such as (r - 1) mod 4, or r if the offset is 0."""
    return f"(r{plus(offset)}) mod {num_ranks}" if offset else "r"


def plus(offset: int) -> str:
    """Return what a formula adds: " + 2", " - 1", or nothing for 0."""
    return f" {'-' if offset < 0 else '+'} {abs(offset)}" if offset else ""


def _name_chunks(numbers: Ints, num_chunks: int) -> str:
    return "all of the data" if len(numbers) == num_chunks else name_numbers("chunk", numbers.tolist())


def name_numbers(noun: str, numbers: Sequence[int]) -> str:
    """Return such as rank 3, chunks 0 to 7, chunks 0, 3 and 5; or 9 chunks if they are scattered. numbers: sorted."""
    first, last, count = numbers[0], numbers[-1], len(numbers)
    if count == 1:
        return f"{noun} {first}"
    if count > 2 and last - first == count - 1:
        return f"{noun}s {first} to {last}"
    if count > MAX_NAMED:
        return plural(count, noun)
    return f"{noun}s {', '.join(map(str, numbers[:-1]))} and {last}"
