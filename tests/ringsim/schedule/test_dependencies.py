"""The arrows between transfers: whoever follows them, and nothing else, gets the simulator's times."""

from functools import cache

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ringsim import Collective, Network, Schedule, Transfer, ring_all_reduce
from ringsim.schedule.dependencies import BYTES_PER_TRANSFER, Dependencies, dependencies
from ringsim.schedule.flow import NO_ROW
from ringsim.simulation import simulate
from ringsim.simulation.routes import has_contention
from tests.ringsim.strategies import built_in_schedules, networks, schedules


class Followed:
    """The times of single transfers, each asking the ones that it waits for."""

    def __init__(self, schedule: Schedule, network: Network, size: int, in_order: bool) -> None:
        self._network, self._arrows = network, dependencies(schedule, in_order=in_order)
        self._bytes = schedule.chunk_bytes(size)[self._arrows.chunk]
        # A row asks only rows before it, or sends of its own step: so going in order no question goes deep.
        self.start, self.left, self.all_left, self.applied = map(
            cache, (self._start, self._left, self._all_left, self._applied)
        )

    def times(self) -> list[tuple[float, float, float, float]]:
        """Of every transfer when it starts, has left, is being applied and has been."""
        rows = range(len(self._arrows))
        return [(self.start(row), self.left(row), self._apply(row), self.applied(row)) for row in rows]

    def _start(self, row: int) -> float:
        ready, before = self._arrows.data_dependency[row], self._arrows.before_on_channel[row]
        return max(0.0 if ready == NO_ROW else self.applied(ready), 0.0 if before == NO_ROW else self.left(before))

    def _left(self, row: int) -> float:
        network = self._network
        return self.start(row) + float(network.gap_s + self._bytes[row] / network.bandwidth_bytes_per_s)

    def _all_left(self, row: int) -> float:
        before = self._arrows.sent_before[row]
        return max(self.left(row), 0.0 if before == NO_ROW else self.all_left(before))

    def _apply(self, row: int) -> float:
        free = self._arrows.buffer_dependency[row]
        before = {int(self._arrows.before_on_connection[row]), int(self._arrows.before_in_chunk[row])} - {NO_ROW}
        arrived = self.left(row) + self._network.latency_s
        free_at = 0.0 if free == NO_ROW else self.all_left(free)
        return max(arrived, free_at, *map(self.applied, before))

    def _applied(self, row: int) -> float:
        network = self._network
        adding = self._bytes[row] / network.reduce_bytes_per_s if self._arrows.reduce[row] else 0.0
        return self._apply(row) + float(network.receive_overhead_s + adding)


@settings(max_examples=200, deadline=None)
@given(schedules() | built_in_schedules(max_ranks=7), st.integers(0, 200), networks(), st.booleans())
def test_following_the_arrows_gives_the_simulated_times(
    schedule: Schedule, size: int, network: Network, in_order: bool
) -> None:
    """One transfer at a time, from the arrows and the costs alone: the same to the last bit, if no two share a link."""
    assume(not has_contention(schedule, network.topology(schedule.num_ranks)))
    timeline = simulate(schedule, network, size, in_order=in_order)
    columns = (timeline.start_s, timeline.left_s, timeline.apply_s, timeline.applied_s)
    assert Followed(schedule, network, size, in_order).times() == list(zip(*(c.tolist() for c in columns), strict=True))


@given(schedules())
def test_the_rows_are_those_of_a_timeline(schedule: Schedule) -> None:
    """The same transfers in the same order."""
    arrows, timeline = dependencies(schedule), simulate(schedule, Network(0.0, 1.0), 100)
    for name in ("step", "src", "dst", "chunk", "reduce"):
        assert getattr(arrows, name).tolist() == getattr(timeline, name).tolist(), name


def arrows_of(arrows: Dependencies, name: str) -> list[int]:
    """One column as a list."""
    column: list[int] = getattr(arrows, name).tolist()
    return column


def test_the_arrows_of_a_ring_of_two() -> None:
    """Row by row: ranks 0 and 1 exchange a chunk to add, then the sums."""
    arrows = dependencies(ring_all_reduce(2))
    assert arrows_of(arrows, "data_dependency") == [NO_ROW, NO_ROW, 1, 0]
    assert arrows_of(arrows, "before_on_channel") == [NO_ROW, NO_ROW, 0, 1]
    assert arrows_of(arrows, "before_on_connection") == [NO_ROW, NO_ROW, 0, 1]
    assert arrows_of(arrows, "before_in_chunk") == [NO_ROW] * 4
    assert arrows_of(arrows, "sent_before") == [NO_ROW] * 4
    assert arrows_of(arrows, "buffer_dependency") == [NO_ROW] * 4


def test_chunks_do_not_wait_for_one_another() -> None:
    """Rank 1 receives two chunks from two ranks, and passes on the second; in order that waits for the first, too."""
    steps = [[Transfer(0, 1, 0, True), Transfer(2, 1, 1, True)], [Transfer(1, 3, 0, True)], [Transfer(1, 0, 1, False)]]
    schedule = Schedule.from_transfers(Collective.ALL_REDUCE, "two chunks", 4, 2, steps)
    arrows, in_order = dependencies(schedule), dependencies(schedule, in_order=True)
    assert arrows_of(arrows, "data_dependency") == [NO_ROW, NO_ROW, 0, 1]
    assert arrows_of(arrows, "before_on_connection") == [NO_ROW] * 4
    assert arrows_of(in_order, "before_on_connection") == [NO_ROW, 0, NO_ROW, NO_ROW]
    # What goes to rank 0 may have to wait for what goes to rank 3: until then all of step 0 has been applied.
    assert arrows_of(in_order, "data_dependency") == [NO_ROW, NO_ROW, 0, 1]


def test_writes_to_a_chunk_wait_for_one_another() -> None:
    """Whoever sends them: the order of the additions is that of the steps."""
    steps = [[Transfer(0, 1, 0, True)], [Transfer(2, 1, 0, True)], [Transfer(2, 1, 0, True)]]
    arrows = dependencies(Schedule.from_transfers(Collective.REDUCE, "thrice", 3, 1, steps))
    assert arrows_of(arrows, "before_in_chunk") == [NO_ROW, 0, NO_ROW]
    assert arrows_of(arrows, "before_on_connection") == [NO_ROW, NO_ROW, 1]


def test_a_write_waits_for_all_sends_of_its_chunk() -> None:
    """On whatever channels, and for none of another chunk."""
    sends = [Transfer(0, 1, 0, True, 1), Transfer(0, 2, 0, True, 2), Transfer(0, 2, 1, True, 3)]
    schedule = Schedule.from_transfers(Collective.ALL_REDUCE, "mine", 3, 2, [sends, [Transfer(1, 0, 0, False)]])
    arrows = dependencies(schedule)
    assert arrows_of(arrows, "buffer_dependency") == [NO_ROW, NO_ROW, NO_ROW, 1]
    assert arrows_of(arrows, "sent_before") == [NO_ROW, 0, NO_ROW, NO_ROW]


def test_the_size_of_a_row_is_as_stated() -> None:
    """What an engine needs to foresee how much memory it will take."""
    arrows = dependencies(ring_all_reduce(5))
    columns = [getattr(arrows, name) for name in Dependencies.__dataclass_fields__]
    assert sum(column.nbytes for column in columns) == BYTES_PER_TRANSFER * len(arrows)


def test_no_transfers_have_no_arrows() -> None:
    """A single rank."""
    assert len(dependencies(ring_all_reduce(1))) == 0
