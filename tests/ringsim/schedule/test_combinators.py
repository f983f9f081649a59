"""Each combinator against doing the same by hand to the transfers written out."""

from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Collective, Schedule, Transfer, merge, on_channel, on_groups, permute_ranks, pipeline, split, then
from tests.ringsim.strategies import schedules

Rows = list[list[Transfer]]


class Shape(NamedTuple):
    """The arguments of `Schedule.from_transfers` beside the transfers."""

    collective: Collective
    algorithm: str
    num_ranks: int
    num_chunks: int


def written_out(schedule: Schedule) -> Rows:
    """The transfers as lists."""
    return [list(step) for step in schedule.steps]


def assert_same(made: Schedule, rows: Rows) -> None:
    """All that an executor reads is what a table works out for `rows`; lookback and num_channels may be too large."""
    shape = Shape(made.collective, made.algorithm, made.num_ranks, made.num_chunks)
    table = Schedule.from_transfers(*shape, rows)
    for a, b in zip(made.steps, table.steps, strict=True):
        for name in ("src", "dst", "chunk", "reduce", "channel", "data_dependency", "buffer_dependency"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist(), name
    rank, chunk = (grid.ravel() for grid in np.indices((made.num_ranks, made.num_chunks)))
    assert made.steps.last_write(rank, chunk).tolist() == table.steps.last_write(rank, chunk).tolist()
    assert made.steps.last_send(rank, chunk).tolist() == table.steps.last_send(rank, chunk).tolist()
    assert made.steps.lookback >= table.steps.lookback
    used = max((transfer.channel for row in rows for transfer in row), default=0) + 1
    assert made.steps.num_channels >= table.steps.num_channels == used


def segment(transfer: Transfer, segments: int, j: int) -> Transfer:
    """The transfer of segment j of the chunk."""
    return transfer._replace(chunk=transfer.chunk * segments + j)


@given(schedules(), st.integers(0, 6))
def test_then_is_the_same_as_writing_both_out(schedule: Schedule, cut: int) -> None:
    """Cutting a schedule in two and joining the parts with `then` changes no column."""
    rows = written_out(schedule)
    shape = Shape(Collective.ALL_REDUCE, "part", schedule.num_ranks, schedule.num_chunks)
    first, second = (Schedule.from_transfers(*shape, part) for part in (rows[:cut], rows[cut:]))
    joined = then(first, second, Collective.ALL_REDUCE, "joined")
    assert_same(joined, rows)
    assert joined.steps.lookback == schedule.steps.lookback


@given(schedules(), st.integers(1, 4))
def test_split_sends_piece_after_piece(schedule: Schedule, segments: int) -> None:
    """Every step becomes one for each segment, and nothing else changes."""
    made = split(schedule, segments)
    assert_same(
        made, [[segment(t, segments, j) for t in row] for row in written_out(schedule) for j in range(segments)]
    )
    assert made.steps.lookback == schedule.steps.lookback * segments


@given(schedules(), st.integers(1, 4))
def test_pipeline_sends_each_piece_a_step_behind(schedule: Schedule, segments: int) -> None:
    """In step t segment j does what the whole did in step t - j."""
    rows = written_out(schedule)
    waves: Rows = [[] for _ in range(len(rows) + segments - 1 if rows else 0)]
    for index, row in enumerate(rows):
        for j in range(segments):
            waves[index + j] += [segment(t, segments, j) for t in row]
    made = pipeline(schedule, segments)
    assert_same(made, waves)
    assert made.steps.lookback == schedule.steps.lookback


@given(schedules(max_steps=9), st.lists(st.integers(0, 9), min_size=1, max_size=3).map(sorted))
def test_merge_takes_turns(schedule: Schedule, cuts: list[int]) -> None:
    """Chunks, channels and steps are interleaved; whoever has more steps goes on alone."""
    rows = written_out(schedule)
    parts = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    shape = Shape(Collective.ALL_REDUCE, "part", schedule.num_ranks, schedule.num_chunks)
    made = merge(*(Schedule.from_transfers(*shape, part) for part in parts), algorithm="merged")

    def part_of(transfer: Transfer, i: int) -> Transfer:
        return segment(transfer, len(parts), i)._replace(channel=transfer.channel * len(parts) + i)

    by_turns = zip_longest(*([[part_of(t, i) for t in row] for row in p] for i, p in enumerate(parts)))
    assert_same(made, [row for turn in by_turns for row in turn if row is not None])
    assert made.algorithm == "merged"


@given(schedules(), st.integers(1, 3))
def test_merge_of_equally_long_ones_knows_its_lookback(schedule: Schedule, copies: int) -> None:
    """It is no larger than needed there, so that an executor keeps no more than it must."""
    assert merge(*[schedule] * copies).steps.lookback == schedule.steps.lookback * copies


@given(schedules(), st.integers(0, 3))
def test_on_channel_changes_channels_alone(schedule: Schedule, channel: int) -> None:
    """All by the same number."""
    rows = [[t._replace(channel=t.channel + channel) for t in row] for row in written_out(schedule)]
    assert_same(on_channel(schedule, channel), rows)


@given(schedules(), st.sampled_from(Collective), st.data())
def test_permute_ranks_moves_owned_chunks(schedule: Schedule, collective: Collective, data: st.DataObject) -> None:
    """Rank order[i] does what rank i did; a chunk goes with its owner, where it has one, to the same place."""
    num_ranks, per_share = schedule.num_ranks, schedule.num_chunks
    rooted = collective in (Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER)
    order = data.draw(st.permutations(range(num_ranks)).filter(lambda order: order[0] == 0 or not rooted))
    paired = collective is Collective.ALL_TO_ALL
    owned = collective not in (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)
    num_shares = num_ranks**2 if paired else num_ranks

    # Chunks of every owner, or pair, not only of the first.
    def share_of(t: Transfer) -> int:
        return t.src * num_ranks + t.dst if paired else t.src

    rows = [[t._replace(chunk=share_of(t) * per_share + t.chunk) for t in row] for row in written_out(schedule)]
    plain = Schedule.from_transfers(collective, "plain", num_ranks, num_shares * per_share, rows)
    new_share = [order[s] * num_ranks + order[d] for s in range(num_ranks) for d in range(num_ranks)]

    def moved(t: Transfer) -> Transfer:
        share, place = divmod(t.chunk, per_share)
        chunk = (new_share if paired else order)[share] * per_share + place if owned else t.chunk
        return Transfer(order[t.src], order[t.dst], chunk, t.reduce, t.channel)

    made = permute_ranks(plain, order)
    assert_same(made, [[moved(t) for t in row] for row in rows])
    assert made.steps.lookback == plain.steps.lookback


@given(schedules(), st.integers(1, 3), st.integers(0, 2), st.data())
def test_on_groups_does_the_same_on_each(schedule: Schedule, num_groups: int, spare: int, data: st.DataObject) -> None:
    """Each group's i-th rank does what rank i did, on the group's run of chunks; the other ranks do nothing."""
    num_ranks, num_chunks = num_groups * schedule.num_ranks + spare, schedule.num_chunks + 2
    everyone = data.draw(st.permutations(range(num_ranks)))
    groups = np.array(everyone[: num_groups * schedule.num_ranks]).reshape(num_groups, -1).tolist()
    start = data.draw(st.lists(st.integers(0, 2), min_size=num_groups, max_size=num_groups))
    rows = [
        [
            Transfer(group[t.src], group[t.dst], first + t.chunk, t.reduce, t.channel)
            for group, first in zip(groups, start, strict=True)
            for t in row
        ]
        for row in written_out(schedule)
    ]
    made = on_groups(schedule, groups, num_ranks, num_chunks, Collective.ALL_REDUCE, start)
    assert_same(made, rows)
    assert made.steps.lookback == schedule.steps.lookback
