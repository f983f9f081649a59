"""`walk_through`: a schedule step by step in words, and its costs compared with lower bounds.

The macros of walkthrough.j2 put the facts into words.
"""

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringsim.analysis.contributions import (
    ContributionStep,
    find_phases,
    hosts_of_network,
    iterate_contributions,
    num_shares,
)
from ringsim.analysis.costs import cost_of
from ringsim.limits import WALKTHROUGH_COUNTS
from ringsim.network import Network
from ringsim.schedule import NO_ROW, Ints, Schedule, Step, flow, verify
from ringsim.text_table import MAX_NAMED, text_template
from ringsim.units import plural


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


def walk_through(schedule: Schedule, network: Network, size_bytes: int) -> dict[str, Any]:
    """Return the schedule in words, for JSON; of a very large schedule only the costs.

    Keys: goal, phases, costs (sentences), skipped (why no step is listed, or None). A phase has the rule of its steps
    `first` to `last`, or "". A step has a sentence, and perhaps each rank's chunks as an example.
    Raises ScheduleError for an incorrect schedule.
    """
    is_skipped = schedule.num_ranks**2 * schedule.num_chunks > WALKTHROUGH_COUNTS
    phases = [] if is_skipped else describe_phases(schedule, network)
    costs = _words().costs(schedule, cost_of(schedule), phases, size_bytes).splitlines()
    skipped = _words().skipped(schedule) if is_skipped else None
    return {"goal": goal_sentence(schedule), "phases": phases, "costs": costs, "skipped": skipped}


def describe_phases(schedule: Schedule, network: Network) -> list[dict[str, Any]]:
    """Return the phases of `walk_through`, with their steps. Raises ScheduleError for an incorrect schedule."""
    verify(schedule)
    contributions = list(iterate_contributions(schedule))
    steps = [
        dict(zip(("number", "sentence", "example"), (held.index, *describe_step(schedule, held)), strict=True))
        for held in contributions
    ]
    return [
        phase._asdict() | {"rule": _rule(schedule, *phase[1:]), "steps": steps[phase.first : phase.last + 1]}
        for phase in find_phases(schedule, contributions, hosts_of_network(network, schedule.num_ranks)[1])
    ]


def _words() -> Any:
    return text_template(Path(__file__).with_name("walkthrough.j2")).module


def goal_sentence(schedule: Schedule) -> str:
    """Describe the ranks' data before the first step and after the last."""
    return str(_words().goal(schedule.collective.value, schedule.num_ranks))


def templates(schedule: Schedule) -> tuple[str, ...]:
    """Return a sentence with placeholders for each `Action`."""
    reduces = schedule.collective.reduces
    return TRANSFER_TEMPLATES if reduces else tuple(text.removesuffix(COUNT) for text in TRANSFER_TEMPLATES)


def describe_step(schedule: Schedule, held: ContributionStep) -> tuple[str, str]:
    """Return a sentence on a step, by a rule for all ranks or by sender, and perhaps an example."""
    step, reduces = held.step, schedule.collective.reduces
    if len(step) == 0:
        return "nothing is sent", ""
    actions = np.where(step.reduce, np.where(held.before == 1, Action.ADD_SHARE, Action.ADD_SUM), Action.COPY)
    is_complete = reduces and bool(held.finished.all())
    if len(step) == 1:
        (src, dst, chunk, *_), template = next(iter(step)), templates(schedule)[int(actions[0])]
        sentence = template.format(src=src, dst=dst, chunk=chunk, held=held.after[0], needed=num_shares(schedule))
        return sentence + COMPLETE * is_complete, ""
    kinds, counts, sends = set(actions.tolist()), set(held.after.tolist()), _Sends.of(schedule, step)
    facts = {
        "action": kinds.pop() if len(kinds) == 1 else int(Action.ADD_SUM),
        "num_added": int(step.reduce.sum()),
        "num_copied": int((~step.reduce).sum()),
        "has_one_receiver": sends.formula is not None or len(np.unique(step.dst)) == 1,
        "count": COUNT.format(held=counts.pop(), needed=num_shares(schedule)) + COMPLETE * is_complete
        if reduces and len(counts) == 1
        else "",
    }
    return _words().step(sends, facts), _words().example(sends, MAX_NAMED)


class _OneReceiver(NamedTuple):
    """A rule by which every rank r sends to one other rank.

    hop: offset of the receiver from r. flip: differing bits of both, if one for all ranks. num_chunks: least and most
    per rank. chunk: offset of a single chunk from r, if one rule holds.
    """

    hop: int
    flip: int | None
    num_chunks: tuple[int, int]
    chunk: int | None


class _Sends(NamedTuple):
    """The messages of a step: the chunks by sender and receiver.

    contents: names of each message's chunks. formula: None unless one rule holds for all ranks.
    """

    num_ranks: int
    chunks: dict[tuple[int, int], list[int]]
    contents: list[str]
    formula: _OneReceiver | None

    @classmethod
    def of(cls, schedule: Schedule, step: Step) -> "_Sends":
        chunks: dict[tuple[int, int], list[int]] = {}
        for src, dst, chunk, *_ in sorted(step):
            chunks.setdefault((src, dst), []).append(chunk)
        contents = [
            "all of the data" if len(numbers) == schedule.num_chunks else name_numbers(numbers, "chunk")
            for numbers in chunks.values()
        ]
        return cls(schedule.num_ranks, chunks, contents, _formula(schedule, chunks))

    def by_rank(self) -> list[str]:
        return [f"rank {rank}: {content}" for rank, content in enumerate(self.contents)]

    @property
    def is_all_pairs(self) -> bool:
        return len(self.chunks) == self.num_ranks * (self.num_ranks - 1)

    def is_chunk_of(self, end: int) -> bool:
        return all(chunks == [ranks[end]] for ranks, chunks in self.chunks.items())

    def clauses(self) -> list[str]:
        receivers: dict[tuple[int, str], list[int]] = {}
        for (src, dst), content in zip(self.chunks, self.contents, strict=True):
            receivers.setdefault((src, content), []).append(dst)
        senders: dict[tuple[str, str], list[int]] = {}
        for (src, content), ranks in receivers.items():
            senders.setdefault((content, name_numbers(ranks, "rank")), []).append(src)
        return [
            f"{name_numbers(ranks, 'rank')} {'sends' if len(ranks) == 1 else 'send'} {content} to {to}"
            for (content, to), ranks in senders.items()
        ]


def _formula(schedule: Schedule, sends: dict[tuple[int, int], list[int]]) -> _OneReceiver | None:
    src, dst = np.array(list(sends)).T
    num_ranks, chunks, flips = schedule.num_ranks, list(sends.values()), np.unique(src ^ dst).tolist()
    ahead, offset = _common_offset(dst, src, num_ranks), None
    if not np.array_equal(src, np.arange(num_ranks)) or (ahead is None and len(flips) > 1):
        return None
    hop, sizes = _near(ahead or 0, num_ranks), [len(numbers) for numbers in chunks]
    if max(sizes) == 1 and schedule.num_chunks == num_ranks:
        offset = _common_offset(np.concatenate(chunks), src, num_ranks)
        if offset is not None and hop >= 0:  # counted against the direction of travel, so that it grows by step
            offset = -(-offset % num_ranks)
    return _OneReceiver(hop, flips[0] if len(flips) == 1 else None, (min(sizes), max(sizes)), offset)


def _rule(schedule: Schedule, first: int, last: int) -> str:
    """Return the formula for all these steps of a ring, and its reason; or ""."""
    num_ranks, start = schedule.num_ranks, _ring_offsets(schedule, first)
    if start is None or start[0] not in (1, num_ranks - 1) or first == last:
        return ""
    hop, offset = start
    ahead = 1 if hop == 1 else -1
    # One step later a rank passes on what came from the rank behind it: the chunk one further back.
    expected = ((hop, (offset - ahead * later) % num_ranks) for later in range(last - first + 1))
    if any(_ring_offsets(schedule, first + later) != offsets for later, offsets in enumerate(expected)):
        return ""
    rows = flow(schedule)
    begun = slice(*np.searchsorted(rows.step, [first, first + 1]))
    is_passed_on = first > 0 and bool((np.append(rows.step, NO_ROW)[rows.reads[begun]] == first - 1).all())
    constant = _near(offset + ahead * (first + 1), num_ranks)  # people count steps from 1
    adds = bool(schedule.steps[first].reduce.all())
    return str(_words().rule(first, last, num_ranks, ahead, constant, is_passed_on, adds))


def _ring_offsets(schedule: Schedule, index: int) -> tuple[int, int] | None:
    step, num_ranks = schedule.steps[index], schedule.num_ranks
    if schedule.num_chunks != num_ranks or not np.array_equal(np.sort(step.src), np.arange(num_ranks)):
        return None
    hop, offset = (_common_offset(column, step.src, num_ranks) for column in (step.dst, step.chunk))
    return None if hop is None or offset is None else (hop, offset)


def _common_offset(numbers: Ints, senders: Ints, num_ranks: int) -> int | None:
    offsets = np.unique((numbers - senders) % num_ranks)
    return int(offsets[0]) if len(offsets) == 1 else None


def _near(offset: int, num_ranks: int) -> int:
    offset %= num_ranks
    return offset - num_ranks if offset > num_ranks // 2 else offset


def name_numbers(numbers: Sequence[int], noun: str) -> str:
    """Return, for example, rank 3, chunks 0 to 7, or chunks 0, 3 and 5; 9 chunks if scattered. numbers: sorted."""
    *others, last = numbers
    if not others:
        return f"{noun} {last}"
    if len(others) > 1 and last - others[0] == len(others):
        return f"{noun}s {others[0]} to {last}"
    listed = f"{noun}s {', '.join(map(str, others))} and {last}"
    return plural(len(numbers), noun) if len(numbers) > MAX_NAMED else listed
