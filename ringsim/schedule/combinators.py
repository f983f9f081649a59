"""Combinators: operations on schedules that return schedules.

A result is a `Relay` wherever possible.
"""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ringsim.files import quoted
from ringsim.schedule.collective import Collective
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.steps import Copies, Ints, Relay, ScheduleError, Steps, TransferTable
from ringsim.schedule.user_steps import MAX_CHUNKS, require_count, whole_numbers

MOST_HOPS = 2**20  # of a relay; larger schedules are listed when their table is accessed, if memory permits
_Rows = TypeVar("_Rows", TransferTable, Relay)


def _require_schedules(combinator: str, *operands: object) -> None:
    for operand in operands:
        if not isinstance(operand, Schedule):
            raise ValueError(f"{combinator}: {quoted(operand)} is no Schedule")


def then(first: Schedule, second: Schedule, collective: Collective, algorithm: str) -> Schedule:
    """Run `first`, and then `second`, on the same ranks and chunks.

    The only waits between them are those of the chunks. Raises ScheduleError if ranks or chunks differ.

        >>> from ringsim import Collective, ring_all_gather, ring_reduce_scatter, then
        >>> then(ring_reduce_scatter(4), ring_all_gather(4), Collective.ALL_REDUCE, "mine")
        Schedule(all_reduce mine over 4 ranks, 4 chunks, 6 steps)
    """
    _require_schedules("then", first, second)
    if (first.num_ranks, first.num_chunks) != (second.num_ranks, second.num_chunks):
        raise ScheduleError(
            f"then: {first} has {first.num_chunks} chunks, {second} has {second.num_chunks}; both must agree"
        )
    if first.partition is not second.partition:
        raise ScheduleError(f"then: {first} and {second} divide a tensor differently; both must divide it alike")
    steps = _one_after_another(first.steps, second.steps)
    return Schedule(collective, algorithm, first.num_ranks, first.num_chunks, steps, first.partition)


def _one_after_another(first: Steps, second: Steps) -> Steps:
    if first.relay and second.relay and (relay := first.relay.followed_by(second.relay)):
        return Steps.relayed(relay)

    def make() -> TransferTable:
        return TransferTable.joined([first.table, replace(second.table, step=second.table.step + np.int32(len(first)))])

    return Steps(len(first) + len(second), first.num_transfers + second.num_transfers, make)


def merge(first: Schedule, *others: Schedule, algorithm: str | None = None) -> Schedule:
    """Run schedules of the same collective, ranks and chunks at once, each on its own share of the data.

    Chunk c of the i-th of k schedules becomes chunk `k * c + i`, and so do channels. Steps alternate, and the schedules
    do not wait for each other. algorithm: by default the name of the first schedule.

    Raises ScheduleError if the schedules do not fit.

        >>> from ringsim import merge, ring_all_reduce
        >>> merge(ring_all_reduce(4), ring_all_reduce(4, direction=-1), algorithm="both_ways")
        Schedule(all_reduce both_ways over 4 ranks, 8 chunks, 12 steps)
    """
    schedules = [first, *others]
    _require_schedules("merge", *schedules)
    shapes = [(one.collective, one.num_ranks, one.num_chunks) for one in schedules]
    for other, shape in zip(schedules, shapes, strict=True):
        if shape != shapes[0]:
            raise ScheduleError(
                f"merge: {first} has {first.num_chunks} chunks, {other} has {other.num_chunks}; "
                "collective, ranks and chunks must agree"
            )
    if any(other.partition is not first.partition for other in others):
        raise ScheduleError(f"merge: {first} and another divide a tensor differently; all must divide it alike")
    steps = _side_by_side([schedule.steps for schedule in schedules])
    num_chunks = first.num_chunks * len(schedules)
    return replace(first, algorithm=algorithm or first.algorithm, num_chunks=num_chunks, steps=steps)


def _side_by_side(parts: list[Steps]) -> Steps:
    relays, count = [steps.relay for steps in parts if steps.relay], len(parts)
    is_small = sum(len(relay.src) for relay in relays) <= MOST_HOPS
    if len(relays) == count and is_small and len({(relay.reduces, relay.num_turns) for relay in relays}) == 1:
        turned = [replace(one, turn=one.turn * count + part) for part, one in enumerate(relays)]
        numbered = [_numbered(one, count, part) for part, one in enumerate(turned)]
        return Steps.relayed(replace(Relay.joined(numbered), num_turns=relays[0].num_turns * count))

    def make() -> TransferTable:
        part = np.repeat(np.arange(count), [len(steps) for steps in parts])
        step = np.concatenate([np.arange(len(steps)) for steps in parts])
        part = part[np.lexsort((part, step))]
        tables = [
            replace(_numbered(steps.table, count, i), step=np.flatnonzero(part == i).astype(np.int32)[steps.table.step])
            for i, steps in enumerate(parts)
        ]
        return TransferTable.joined(tables)

    num_steps, num_transfers = sum(map(len, parts)), sum(steps.num_transfers for steps in parts)
    return Steps(num_steps, num_transfers, make, copies=_copies(parts))


def _numbered(rows: _Rows, count: int, part: int) -> _Rows:
    return replace(rows, chunk=_scaled(rows.chunk, count, part), channel=_scaled(rows.channel, count, part))


def _copies(parts: list[Steps]) -> Copies | None:
    """Return the copies if all parts are permuted schedules and some have the same original; else None."""
    families: dict[int, list[int]] = {}
    moved = [steps.moved for steps in parts if steps.moved]
    for number, (original, _) in enumerate(moved):
        families.setdefault(id(original), []).append(number)
    if len(moved) < len(parts) or len(families) == len(parts):
        return None
    orders = [np.array([moved[number][1] for number in numbers]) for numbers in families.values()]
    return Copies(
        _side_by_side([parts[numbers[0]] for numbers in families.values()]),
        tuple(np.array(numbers) for numbers in families.values()),
        tuple(order[:, np.argsort(order[0])] for order in orders),
    )


def on_groups(
    schedule: Schedule,
    groups: npt.ArrayLike,
    num_ranks: int,
    num_chunks: int,
    collective: Collective,
    first_chunk: Sequence[int] | Ints | None = None,
) -> Schedule:
    """Let every group of ranks run `schedule` in the same steps, within a schedule of more ranks and chunks.

    groups: (num_groups, schedule.num_ranks); rank `groups[g, i]` takes the place of rank i.
    first_chunk: (num_groups,), where the chunks of each group start; by default 0.

    Raises ScheduleError if the groups overlap or do not fit into `num_ranks` and `num_chunks`.

        >>> from ringsim import Collective, on_groups, ring_reduce_scatter
        >>> on_groups(ring_reduce_scatter(2), [[0, 1], [2, 3]], 4, 2, Collective.REDUCE_SCATTER)
        Schedule(reduce_scatter ring over 4 ranks, 2 chunks, 1 step)
    """
    _require_schedules("on_groups", schedule)
    require_count("num_ranks", num_ranks)
    ranks = np.atleast_2d(whole_numbers("groups", groups))
    start = np.zeros(len(ranks), np.int64) if first_chunk is None else whole_numbers("first_chunk", first_chunk)
    members = np.unique(ranks)
    is_shaped = start.ndim == 1 and len(start) > 0 and ranks.shape == (len(start), schedule.num_ranks)
    if not is_shaped or len(members) != ranks.size:
        raise ScheduleError(f"on_groups: {schedule}: each group must have {schedule.num_ranks} different ranks")
    if members[0] < 0 or members[-1] >= num_ranks or start.min() < 0 or start.max() + schedule.num_chunks > num_chunks:
        raise ScheduleError(f"on_groups: {schedule}: not within {num_ranks} ranks and {num_chunks} chunks")
    steps = _copied(schedule.steps, [partial(_renamed, *group) for group in zip(ranks, start, strict=True)])
    return Schedule(collective, schedule.algorithm, num_ranks, num_chunks, steps, schedule.partition)


def _copied(steps: Steps, changes: Sequence[Callable[[Any], Any]], moved: tuple[Steps, Ints] | None = None) -> Steps:
    if steps.relay and (len(changes) == 1 or len(steps.relay.src) * len(changes) <= MOST_HOPS):
        return Steps.relayed(Relay.joined([change(steps.relay) for change in changes]))

    def make() -> TransferTable:
        return TransferTable.joined([change(steps.table) for change in changes])

    return Steps(len(steps), steps.num_transfers * len(changes), make, moved=moved)


def _renamed(ranks: Ints, first_chunk: int, rows: _Rows) -> _Rows:
    new: Any = ranks.astype(rows.src.dtype)
    return replace(rows, src=new[rows.src], dst=new[rows.dst], chunk=_scaled(rows.chunk, 1, first_chunk))


def permute_ranks(schedule: Schedule, order: Sequence[int] | npt.NDArray[np.integer]) -> Schedule:
    """Let rank `order[i]` take the place of rank i in `schedule`; a ring then goes order[0], order[1], ...

    Shares of ranks or of pairs of ranks move with them; other chunks keep their numbers.

    Raises ValueError if `order` is not a permutation of the ranks or moves the root, and ScheduleError if ranks own
    different numbers of chunks.

        >>> from ringsim import permute_ranks, ring_all_reduce
        >>> [transfer.src for transfer in permute_ranks(ring_all_reduce(4), [0, 2, 1, 3]).steps[0]]
        [0, 2, 1, 3]
    """
    _require_schedules("permute_ranks", schedule)
    new_rank = whole_numbers("order", order)
    if new_rank.ndim != 1 or not np.array_equal(np.sort(new_rank), np.arange(schedule.num_ranks)):
        raise ValueError(f"order {new_rank.tolist()}: must have each rank 0..{schedule.num_ranks - 1} once")
    if schedule.collective.has_root and new_rank[0] != 0:
        raise ValueError(f"order {new_rank.tolist()}: must begin with rank 0, the root of {schedule.collective.value}")
    num_shares = schedule.collective.num_shares(schedule.num_ranks)
    if schedule.num_chunks % num_shares:
        raise ScheduleError(
            f"permute_ranks: {schedule} has {schedule.num_chunks} chunks; must be a multiple of its ranks"
            f"{' squared' * (num_shares > schedule.num_ranks)}"
        )
    shares = np.arange(schedule.num_chunks).reshape(num_shares, -1)
    new_chunk = shares[_permuted_shares(schedule.collective, new_rank)].ravel()

    def permuted(rows: _Rows) -> _Rows:
        return replace(_renamed(new_rank, 0, rows), chunk=new_chunk.astype(rows.chunk.dtype)[rows.chunk])

    return replace(schedule, steps=_copied(schedule.steps, [permuted], moved=(schedule.steps, new_rank)))


def _permuted_shares(collective: Collective, new_rank: Ints) -> Ints:
    if collective is Collective.ALL_TO_ALL:
        return (len(new_rank) * new_rank[:, np.newaxis] + new_rank).ravel()
    return new_rank if collective.num_shares(2) > 1 else np.zeros(1, np.int64)


def on_channel(schedule: Schedule, channel: int) -> Schedule:
    """Move the transfers on channel c to channel `c + channel`, independent of schedules on lower channels.

    Raises ValueError for a negative number.

        >>> from ringsim import on_channel, ring_all_reduce
        >>> on_channel(ring_all_reduce(3), 1).steps[0].channel.tolist()
        [1, 1, 1]
    """
    _require_schedules("on_channel", schedule)
    require_count("channel", channel, least=0)
    if not channel:
        return schedule

    def moved(rows: _Rows) -> _Rows:
        return replace(rows, channel=_scaled(rows.channel, 1, channel))

    return replace(schedule, steps=_copied(schedule.steps, [moved]))


def split(schedule: Schedule, segments: int) -> Schedule:
    """Cut each chunk into `segments` neighbouring chunks, and each step into as many steps.

    Segment j of chunk c is chunk `c * segments + j`, sent in step `step * segments + j`. Raises ValueError for less
    than one segment.

        >>> from ringsim import ring_all_reduce, split
        >>> split(ring_all_reduce(4), 2)
        Schedule(all_reduce ring over 4 ranks, 8 chunks, 12 steps)
    """
    if _is_whole("split", schedule, segments):
        return schedule
    steps = schedule.steps
    if steps.relay and len(steps.relay.src) * segments <= MOST_HOPS:
        relays = [
            replace(_segment(steps.relay, segments, j), turn=steps.relay.turn * segments + j) for j in range(segments)
        ]
        made = Steps.relayed(replace(Relay.joined(relays), num_turns=steps.relay.num_turns * segments))
    else:

        def make() -> TransferTable:
            first = steps.table.step * np.int32(segments)
            return TransferTable.joined(
                [replace(_segment(steps.table, segments, j), step=first + j) for j in range(segments)]
            )

        made = Steps(len(steps) * segments, steps.num_transfers * segments, make)
    return replace(schedule, num_chunks=schedule.num_chunks * segments, steps=made)


def pipeline(schedule: Schedule, segments: int) -> Schedule:
    """Cut each chunk into `segments` neighbouring chunks, which start one step after the other.

    Segment j of chunk c is chunk `c * segments + j`, sent in step `step + j` of `num_steps + segments - 1`. In order,
    unlike with `split`, later segments on their way up a tree do not delay the first on its way down. Raises ValueError
    for less than one segment.

        >>> from ringsim import algorithm, pipeline
        >>> pipeline(algorithm("binomial_tree", 8, "broadcast"), 4)
        Schedule(broadcast binomial_tree over 8 ranks, 4 chunks, 6 steps)
    """
    if _is_whole("pipeline", schedule, segments):
        return schedule
    steps = schedule.steps

    def make() -> TransferTable:
        table = steps.table  # the later the segment, the earlier the step of the whole that it does
        waves = [replace(_segment(table, segments, j), step=table.step + j) for j in reversed(range(segments))]
        return TransferTable.joined(waves)

    num_steps = len(steps) + segments - 1 if len(steps) else 0
    made = Steps(num_steps, steps.num_transfers * segments, make)
    return replace(schedule, num_chunks=schedule.num_chunks * segments, steps=made)


def _is_whole(combinator: str, schedule: Schedule, segments: int) -> bool:
    _require_schedules(combinator, schedule)
    require_count("segments", segments)
    return segments == 1


def _segment(rows: _Rows, segments: int, j: int) -> _Rows:
    return replace(rows, chunk=_scaled(rows.chunk, segments, j))


def _scaled(numbers: Any, factor: int, offset: int) -> Any:
    largest = int(numbers.max(initial=0)) * factor + int(offset)
    if largest > MAX_CHUNKS:
        raise ScheduleError(f"a chunk or channel would have the number {largest}: must be at most {MAX_CHUNKS}")
    return numbers * factor + int(offset)
