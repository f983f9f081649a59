"""Each combinator against doing the same by hand to the transfers written out."""

from dataclasses import fields, replace
from itertools import zip_longest
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringsim import (
    Collective,
    Network,
    Schedule,
    Transfer,
    algorithm,
    merge,
    on_channel,
    on_groups,
    permute_ranks,
    pipeline,
    ring_all_reduce,
    split,
    then,
)
from ringsim.schedule import NO_ROW, ScheduleError, TransferTable, dependencies
from ringsim.simulation.events import run_events
from tests.refusals import refused
from tests.ringsim.strategies import relays, schedules, uniform_networks

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


def listed(schedule: Schedule) -> Schedule:
    """The same, as a list of transfers."""
    shape = schedule.collective, "listed", schedule.num_ranks, schedule.num_chunks
    return Schedule.from_transfers(*shape, written_out(schedule))


def assert_same(made: Schedule, rows: Rows) -> None:
    """All that is known of its transfers is what is known of these: as a whole, step by step and rank by rank."""
    listed = Schedule.from_transfers(made.collective, made.algorithm, made.num_ranks, made.num_chunks, rows)
    assert (made.num_steps, made.num_transfers) == (len(rows), sum(map(len, rows)))
    assert [list(step) for step in made.steps] == rows
    assert [list(made.steps[index]) for index in range(len(rows))] == rows
    assert columns(made.steps.table) == columns(listed.steps.table)
    for rank in range(made.num_ranks):
        assert columns(made.steps.table_of(rank)) == columns(listed.steps.table_of(rank))


def columns(table: TransferTable) -> list[list[int]]:
    """The columns as lists."""
    return [getattr(table, field.name).tolist() for field in fields(TransferTable)]


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


@given(schedules() | relays(), st.integers(1, 4))
def test_split_sends_piece_after_piece(schedule: Schedule, segments: int) -> None:
    """Every step becomes one for each segment, and nothing else changes."""
    made = split(schedule, segments)
    assert_same(
        made, [[segment(t, segments, j) for t in row] for row in written_out(schedule) for j in range(segments)]
    )


@given(schedules() | relays(), st.integers(1, 4))
def test_pipeline_sends_each_piece_a_step_behind(schedule: Schedule, segments: int) -> None:
    """In step t segment j does what the whole did in step t - j."""
    rows = written_out(schedule)
    waves: Rows = [[] for _ in range(len(rows) + segments - 1 if rows else 0)]
    for index, row in enumerate(rows):
        for j in range(segments):
            waves[index + j] += [segment(t, segments, j) for t in row]
    made = pipeline(schedule, segments)
    assert_same(made, waves)


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


@given(schedules() | relays(), st.integers(0, 3))
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


@given(schedules() | relays(), st.integers(1, 3), st.integers(0, 2), st.data())
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


@given(relays(), relays())
def test_relays_one_after_another(first: Schedule, second: Schedule) -> None:
    """Whether or not the second passes on what the first has brought."""
    if (first.num_ranks, first.num_chunks) == (second.num_ranks, second.num_chunks):
        assert_same(then(first, second, Collective.ALL_REDUCE, "both"), written_out(first) + written_out(second))


@given(st.lists(relays(max_ranks=3), min_size=2, max_size=3))
def test_relays_side_by_side(relays: list[Schedule]) -> None:
    """The same as what is listed, merged."""
    alike = [one for one in relays if one.num_chunks == relays[0].num_chunks and one.num_ranks == relays[0].num_ranks]
    alike = [replace(one, collective=Collective.ALL_REDUCE) for one in alike]
    assert_same(merge(*alike), written_out(merge(*map(listed, alike))))


@given(relays(), st.permutations(range(5)))
def test_relays_with_ranks_in_other_places(relay: Schedule, order: list[int]) -> None:
    """The same as what is listed, permuted."""
    own = [rank for rank in order if rank < relay.num_ranks]
    assert_same(permute_ranks(relay, own), written_out(permute_ranks(listed(relay), own)))


@given(relays(), uniform_networks(), st.booleans())
def test_no_send_of_a_relay_is_waited_for(relay: Schedule, network: Network, in_order: bool) -> None:
    """Before a chunk comes back, it has left for certain: the waits of rule 4 change no time."""
    assert (dependencies(relay).buffer_dependency == NO_ROW).all()
    topology, sizes = network.topology(relay.num_ranks), np.full(relay.num_chunks, 100)
    relayed_s, listed_s = (
        run_events(dependencies(one, in_order=in_order), topology, sizes).applied_s.tolist()
        for one in (relay, listed(relay))
    )
    assert relayed_s == listed_s


def test_numbers_that_a_table_cannot_hold_are_refused() -> None:
    """They must not come out negative, in a relay either."""
    last = Schedule.from_transfers(Collective.BROADCAST, "b", 2, 2**30, [[Transfer(0, 1, 2**30 - 1, False)]])
    many = "a chunk or channel would have the number {}: must be at most 2147483647"
    with refused(many.format(2**32 - 4), ScheduleError):
        assert split(last, 4).steps.table
    with refused(many.format(2**32 - 4), ScheduleError):
        assert merge(last, last, last, last).steps.table
    with refused(many.format(2**40), ScheduleError):
        on_channel(ring_all_reduce(2), 2**40)


def test_a_round_of_many_hops_is_not_made_before_it_is_asked_for() -> None:
    """Of more than a million it is listed, where that fits, with the same transfers."""
    assert split(ring_all_reduce(2**16), 2**10).num_transfers == 2**10 * 2**17 * (2**16 - 1)
    assert algorithm("torus", 2**16).steps.relay is None
    with patch("ringsim.schedule.combinators.MOST_HOPS", 8):
        as_list = split(ring_all_reduce(4), 3)
    assert as_list.steps.relay is None
    assert_same(split(ring_all_reduce(4), 3), written_out(as_list))
