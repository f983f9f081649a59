"""Steps and transfers in words: who sends which chunk to whom, by which rule, and what it adds up to."""

from collections.abc import Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ringsim.analysis.holdings import HeldStep, num_shares
from ringsim.schedule import Collective, Ints, Schedule

MAX_CLAUSES = 4  # in the sentence of a step that follows no rule
MAX_RUNS = 4  # of consecutive chunks that are named; more are counted
MAX_SENDERS = 8  # whose chunks are listed below a sentence that does not name them


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


def step_sentence(schedule: Schedule, held: HeldStep) -> str:
    """Return what happens in a step: by a rule for all ranks where there is one, else pair by pair."""
    step = held.step
    if not len(step):
        return "nothing is sent"
    if len(step) == 1:
        return transfer_sentence(schedule, held, 0)
    pairs, chunks = _pairs(held)
    subject, several = _who_sends(schedule, pairs, chunks)
    return f"{subject}, {_what_receivers_do(held, several)}{_count(schedule, held)}"


def _pairs(held: HeldStep) -> tuple[Ints, list[Ints]]:
    """Who sends to whom, (num_pairs, 2) in the order of the senders, and the chunks of each pair."""
    step = held.step
    pairs, number = np.unique(np.column_stack([step.src, step.dst]), axis=0, return_inverse=True)
    number = number.ravel()  # NumPy 2.0 alone gives it another shape
    return pairs, [step.chunk[number == pair] for pair in range(len(pairs))]


def _who_sends(schedule: Schedule, pairs: Ints, chunks: list[Ints]) -> tuple[str, bool]:
    """Return the main clause, and whether it names several receivers."""
    hop = _hop(pairs, schedule.num_ranks)
    if hop is not None:
        return f"every rank r sends {_chunk_rule(schedule, pairs, chunks, hop)} to {_receiver(pairs, hop)}", False
    names = [name_chunks(numbers, schedule.num_chunks) for numbers in chunks]
    if _is_all_to_all(pairs, schedule.num_ranks):
        return _to_all_others(pairs, chunks, names), True
    clauses = _clauses(pairs.tolist(), names)
    more = len(clauses) - MAX_CLAUSES
    if more > 0:
        clauses = [*clauses[:MAX_CLAUSES], f"so on for {more} more" if more > 1 else "so on for one more"]
    return ", ".join(clauses[:-1]) + (" and " if len(clauses) > 1 else "") + clauses[-1], len(set(pairs[:, 1])) > 1


def _is_all_to_all(pairs: Ints, num_ranks: int) -> bool:
    return len(pairs) == num_ranks * (num_ranks - 1) > 2


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


def chunks_by_sender(schedule: Schedule, held: HeldStep) -> str:
    """Return which chunks each rank sends where `step_sentence` does not name them; "" where it does.

    Such as "ranks 0 and 1 send chunks 2 to 3, ranks 2 and 3 chunks 0 to 1"; of many ranks the first few.
    """
    if not len(held.step):
        return ""
    pairs, chunks = _pairs(held)
    hop = _hop(pairs, schedule.num_ranks)
    if hop is not None and _names_no_chunk(_chunk_rule(schedule, pairs, chunks, hop)):
        return _by_neighbours([name_chunks(some, schedule.num_chunks) for some in chunks])
    if _is_all_to_all(pairs, schedule.num_ranks) and PART in _who_sends(schedule, pairs, chunks)[0]:
        names = [name_chunks(some, schedule.num_chunks) for some in chunks]
        return _listed(_clauses(pairs.tolist(), names), MAX_SENDERS)
    return ""


def _names_no_chunk(content: str) -> bool:
    return content[0].isdecimal()  # a number of chunks, such as 4 chunks or 1 to 2 chunks


def _by_neighbours(names: Sequence[str]) -> str:
    """Neighbours that send the same chunks are named together."""
    clauses: list[str] = []
    for name, group in groupby(range(len(names)), key=lambda rank: names[rank]):
        senders = list(group)
        verb = "" if clauses else "sends " if len(senders) == 1 else "send "
        clauses.append(f"{name_ranks(senders)} {verb}{name}")
    return _listed(clauses, MAX_SENDERS)


def _listed(parts: Sequence[str], most: int) -> str:
    more = [f"and so on for {len(parts) - most} more"] if len(parts) > most else []
    return ", ".join([*parts[:most], *more])


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


class _Direction(NamedTuple):
    """By how much the receiver's number is above the sender's, modulo the ranks; or in which bits they differ."""

    ahead: int
    num_ranks: int
    flipped: int = 0


def _hop(pairs: Ints, num_ranks: int) -> _Direction | None:
    """Return the one from every rank to its receiver, where all ranks send and it is the same for all."""
    src, dst = pairs.T
    if not np.array_equal(src, np.arange(num_ranks)):
        return None
    hops, flips = np.unique((dst - src) % num_ranks), np.unique(dst ^ src)
    if len(flips) == 1 and num_ranks > 2:
        return _Direction(0, num_ranks, int(flips[0]))
    return _Direction(near(int(hops[0]), num_ranks), num_ranks) if len(hops) == 1 else None


def _receiver(pairs: Ints, hop: _Direction) -> str:
    if hop.flipped:
        return f"rank r xor {hop.flipped}"
    return "the other" if len(pairs) == 2 else f"rank {modular(hop.ahead, hop.num_ranks)}"


def _chunk_rule(schedule: Schedule, pairs: Ints, chunks: list[Ints], hop: _Direction) -> str:
    """Return the chunk as a formula of the sender r; else how many they are."""
    num_ranks, counts = schedule.num_ranks, {len(numbers) for numbers in chunks}
    if counts == {1} and schedule.num_chunks == num_ranks > 1:
        behind = np.unique((pairs[:, 0] - np.concatenate(chunks)) % num_ranks)
        if len(behind) == 1:
            # Counted against the direction of travel, so that it grows from step to step.
            offset = -int(behind[0]) if hop.ahead >= 0 else int(-behind[0] % num_ranks)
            return f"chunk {modular(offset, num_ranks)}"
    if counts == {schedule.num_chunks}:
        return "all of the data"
    low, high = min(counts), max(counts)
    return f"{low} chunk{'s' if low > 1 else ''}" if low == high else f"{low} to {high} chunks"


def near(offset: int, num_ranks: int) -> int:
    """Return the offset modulo the number of ranks that is closest to 0: -1 rather than num_ranks - 1."""
    offset %= num_ranks
    return offset - num_ranks if offset > num_ranks // 2 else offset


def modular(offset: int, num_ranks: int, rank: str = "r") -> str:
    """Return such as (r - 1) mod 4, or r if the offset is 0."""
    if offset == 0 and rank == "r":
        return rank
    plus = f" {'-' if offset < 0 else '+'} {abs(offset)}" if offset else ""
    return f"({rank}{plus}) mod {num_ranks}"


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
