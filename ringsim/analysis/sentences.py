"""Steps and transfers in words: who sends which chunk to whom, by which rule, and what it adds up to."""

from collections.abc import Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ringsim.analysis.holdings import HeldStep, num_shares
from ringsim.schedule import Collective, Ints, Schedule
from ringsim.units import plural

MAX_CLAUSES = 4  # in the sentence of a step that follows no rule
MAX_RUNS = 4  # of consecutive chunks that are named; more are counted
MAX_SENDERS = 8  # whose chunks are listed below a sentence that does not name them
MAX_RANKS_LISTED = 8  # whose chunks are listed below a rule


class Action(IntEnum):
    """What the receiver does with a chunk; `TRANSFER_TEMPLATES` says it in words."""

    ADD_SHARE = 0  # it had nothing but its own share
    ADD_SUM = 1
    COPY = 2


TRANSFER_TEMPLATES = (
    "rank {dst} adds its share to chunk {chunk} from rank {src}: {held} of {needed}",
    "rank {dst} adds chunk {chunk} from rank {src} to its own sum: {held} of {needed}",
    "rank {dst} copies chunk {chunk} from rank {src}: {held} of {needed}",
)
COPY_TEMPLATE = "rank {dst} copies chunk {chunk} from rank {src}"  # where nothing is summed
COMPLETE = ", complete"  # added where the chunk is finished
PART = "a part of the data"


_GOALS: dict[Collective, str] = {
    Collective.ALL_REDUCE: "every rank has a share of its own of every chunk; in the end every rank must hold the sum "
    "of all {ranks} shares of every chunk",
    Collective.REDUCE_SCATTER: "every rank has a share of its own of every chunk; in the end each rank must hold the "
    "sum of all {ranks} shares of its own part",
    Collective.REDUCE: "every rank has a share of its own of every chunk; in the end rank 0 must hold the sum of all "
    "{ranks} shares of every chunk",
    Collective.ALL_GATHER: "every rank has a part of the data; in the end every rank must hold all parts",
    Collective.BROADCAST: "rank 0 has all of the data; in the end every rank must hold it",
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
    """Return such as "rank 2 adds its share to chunk 0 from rank 1: 3 of 4"."""
    step = held.step
    template = templates(schedule)[int(actions(held)[row])]
    sentence = template.format(
        src=step.src[row], dst=step.dst[row], chunk=step.chunk[row], held=held.after[row], needed=num_shares(schedule)
    )
    return sentence + (COMPLETE if held.finished[row] and schedule.collective.reduces else "")


class ToldStep(NamedTuple):
    """A step in words.

    example: what the rule of the sentence comes to for each of a few ranks, or the chunks of each rank where the
    sentence does not name them; empty elsewhere.
    """

    number: int
    sentence: str
    example: str = ""


def tell_step(schedule: Schedule, held: HeldStep) -> ToldStep:
    """Return what happens in a step: by a rule for all ranks where there is one, else pair by pair."""
    if not len(held.step):
        return ToldStep(held.index, "nothing is sent")
    if len(held.step) == 1:
        return ToldStep(held.index, transfer_sentence(schedule, held, 0))
    pairs, chunks = _pairs(held)
    names = [name_chunks(numbers, schedule.num_chunks) for numbers in chunks]
    several, example = len(set(pairs[:, 1])) > 1, ""
    if hop := _hop(pairs, schedule.num_ranks):
        content, several = _chunk_rule(schedule, pairs, chunks, hop), False
        subject = f"every rank r sends {content} to {_receiver(hop)}"
        is_listed = hop.ahead != 0 and hop.num_ranks <= MAX_RANKS_LISTED and content.startswith("chunk ")
        if is_listed or content[0].isdecimal():  # a number of chunks, such as 4 chunks or 1 to 2 chunks
            example = _by_neighbours(names)
    elif len(pairs) == schedule.num_ranks * (schedule.num_ranks - 1) > 2:
        subject = _to_all_others(pairs, chunks, names)
        example = _listed(_clauses(pairs.tolist(), names)) if PART in subject else ""
    else:
        subject = _joined(_clauses(pairs.tolist(), names))
    return ToldStep(held.index, f"{subject}, {_what_receivers_do(held, several)}{_count(schedule, held)}", example)


def _pairs(held: HeldStep) -> tuple[Ints, list[Ints]]:
    """Who sends to whom, (num_pairs, 2) in the order of the senders, and the chunks of each pair."""
    step = held.step
    pairs, number = np.unique(np.column_stack([step.src, step.dst]), axis=0, return_inverse=True)
    number = number.ravel()  # NumPy 2.0 alone gives it another shape
    return pairs, [step.chunk[number == pair] for pair in range(len(pairs))]


def _joined(clauses: Sequence[str]) -> str:
    """Return such as a, b and c; of many the first few, and how many there are."""
    more = len(clauses) - MAX_CLAUSES
    rest = [f"so on for {more} more" if more > 1 else "so on for one more"] if more > 0 else []
    *first, last = [*clauses[:MAX_CLAUSES], *rest]
    return f"{', '.join(first)} and {last}" if first else last


def _to_all_others(pairs: Ints, chunks: list[Ints], names: list[str]) -> str:
    if len(set(names)) == 1:
        return f"every rank sends {names[0]} to every other rank"
    if all(len(numbers) == 1 for numbers in chunks):
        numbers = np.concatenate(chunks)
        if np.array_equal(numbers, pairs[:, 0]):
            return "every rank r sends chunk r to every other rank"
        if np.array_equal(numbers, pairs[:, 1]):
            return "every rank sends chunk r to rank r, for every other rank r"
    return f"every rank sends {PART} to every other rank"


def _by_neighbours(names: Sequence[str]) -> str:
    """Neighbours that send the same chunks are named together."""
    clauses: list[str] = []
    for name, group in groupby(range(len(names)), key=lambda rank: names[rank]):
        senders = list(group)
        verb = "" if clauses else "sends " if len(senders) == 1 else "send "
        clauses.append(f"{name_ranks(senders)} {verb}{name}")
    return _listed(clauses)


def _listed(parts: Sequence[str]) -> str:
    more = [f"and so on for {len(parts) - MAX_SENDERS} more"] if len(parts) > MAX_SENDERS else []
    return ", ".join([*parts[:MAX_SENDERS], *more])


def _clauses(pairs: Sequence[Sequence[int]], names: Sequence[str]) -> list[str]:
    """Who sends what to whom, one clause for each sender of one thing; what is sent is said once if it is the same."""
    receivers: dict[tuple[int, str], list[int]] = {}
    for (src, dst), name in zip(pairs, names, strict=True):
        receivers.setdefault((src, name), []).append(dst)
    if len(receivers) > 1 and len(set(names)) == len({dst for _, dst in pairs}) == 1:
        return [f"{name_ranks([src for src, _ in pairs])} send {names[0]} to rank {pairs[0][1]}"]
    clauses, previous = [], ""
    for (src, name), ranks in receivers.items():
        content = "" if name == previous else f"sends {name} "
        clauses.append(f"rank {src} {content}to {name_ranks(ranks)}")
        previous = name
    return clauses


def name_ranks(ranks: Sequence[int]) -> str:
    """Return such as rank 3, ranks 1 to 7, or ranks 1 and 5."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


class _SendRule(NamedTuple):
    """By how much every receiver's number is above its sender's, modulo the ranks; 0 where it is not the same for all.

    flipped: the bits in which both numbers differ, where that is the same for all; else 0.
    """

    ahead: int
    flipped: int
    num_ranks: int


def _hop(pairs: Ints, num_ranks: int) -> _SendRule | None:
    """Return the one from every rank to its receiver, where all ranks send and it is the same for all."""
    src, dst = pairs.T
    if not np.array_equal(src, np.arange(num_ranks)):
        return None
    ahead, flips = common_offset(dst, src, num_ranks), np.unique(dst ^ src)
    flipped = int(flips[0]) if len(flips) == 1 and num_ranks > 2 else 0
    return None if ahead is None and not flipped else _SendRule(near(ahead or 0, num_ranks), flipped, num_ranks)


def common_offset(numbers: Ints, senders: Ints, num_ranks: int) -> int | None:
    """Return by how much each number is ahead of its sender's, modulo the ranks; None if it is not the same for all."""
    offsets = np.unique((numbers - senders) % num_ranks)
    return int(offsets[0]) if len(offsets) == 1 else None


def _receiver(hop: _SendRule) -> str:
    if hop.flipped:
        return f"rank r xor {hop.flipped}"
    return "the other" if hop.num_ranks == 2 else f"rank {modular(hop.ahead, hop.num_ranks)}"


def _chunk_rule(schedule: Schedule, pairs: Ints, chunks: list[Ints], hop: _SendRule) -> str:
    """Return the chunk as a formula of the sender r; else how many they are."""
    num_ranks, counts = schedule.num_ranks, {len(numbers) for numbers in chunks}
    if counts == {1} and schedule.num_chunks == num_ranks > 1:
        offset = common_offset(np.concatenate(chunks), pairs[:, 0], num_ranks)
        if offset is not None:
            # Counted against the direction of travel, so that it grows from step to step.
            return f"chunk {modular(offset if hop.ahead < 0 else -(-offset % num_ranks), num_ranks)}"
    if counts == {schedule.num_chunks}:
        return "all of the data"
    low, high = min(counts), max(counts)
    return plural(low, "chunk") if low == high else f"{low} to {high} chunks"


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


def name_chunks(numbers: Ints, num_chunks: int) -> str:
    """Return such as chunk 3, chunks 0 to 7, chunks 0, 3 and 5; or 5 chunks if they are scattered."""
    if num_chunks == 1 or len(numbers) == num_chunks > 1:
        return "all of the data"
    if len(numbers) == 1:
        return f"chunk {numbers[0]}"
    ordered = np.sort(numbers)
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1)
    if len(runs) > MAX_RUNS:
        return f"{len(numbers)} chunks"
    *names, last = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"chunks {', '.join(names)}{' and ' if names else ''}{last}"


def _what_receivers_do(held: HeldStep, several: bool) -> str:
    present = set(actions(held).tolist())
    if len(present - {Action.COPY}) and Action.COPY in present:
        num_added = int(held.step.reduce.sum())
        return f"of which {num_added} are added and {len(held.step) - num_added} copied"
    if present == {Action.COPY}:
        return "which copy it" if several else "which copies it"
    if present == {Action.ADD_SHARE}:
        return "which add their shares" if several else "which adds its share"
    return "which add it to what they have" if several else "which adds it to what it has"


def _count(schedule: Schedule, held: HeldStep) -> str:
    """How many shares are in these chunks then, if it is the same number in all."""
    counts: Sequence[int] = np.unique(held.after).tolist()
    if not schedule.collective.reduces or len(counts) != 1:
        return ""
    return f": {counts[0]} of {num_shares(schedule)}{COMPLETE if held.finished.all() else ''}"
