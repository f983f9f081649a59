"""The arrows between transfers: whoever follows them, and nothing else, gets the simulator's times."""

from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ringsim import Network, Schedule, Transfer, ring_all_reduce
from ringsim.schedule.dependencies import BYTES_PER_TRANSFER, Dependencies, dependencies
from ringsim.schedule.flow import NO_ROW
from ringsim.simulation import Runtime, simulate
from ringsim.simulation.routes import has_contention
from tests.ringsim.strategies import built_in_schedules, listed, networks, schedules


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


@given(schedules() | built_in_schedules(max_ranks=7), st.integers(0, 200), networks(), st.booleans())
def test_following_the_arrows_gives_the_simulated_times(
    schedule: Schedule, size: int, network: Network, in_order: bool
) -> None:
    """One transfer at a time, from the arrows and the costs alone: the same to the last bit, if no two share a link."""
    assume(not has_contention(schedule, network.topology(schedule.num_ranks)))
    timeline = simulate(schedule, network, size, runtime=Runtime(in_order=in_order))
    columns = (timeline.start_s, timeline.sent_s, timeline.apply_s, timeline.applied_s)
    assert Followed(schedule, network, size, in_order).times() == list(zip(*(c.tolist() for c in columns), strict=True))


NONE, RING = NO_ROW, ring_all_reduce(2)
TWO_CHUNKS = listed(
    [Transfer(0, 1, 0, True), Transfer(2, 1, 1, True)], [Transfer(1, 3, 0, True)], [Transfer(1, 0, 1, False)]
)
THREE_WRITES = listed([Transfer(0, 1, 0, True)], [Transfer(2, 1, 0, True)], [Transfer(2, 1, 0, True)])
THREE_SENDS = listed(
    [Transfer(0, 1, 0, True, 1), Transfer(0, 2, 0, True, 2), Transfer(0, 2, 1, True, 3)], [Transfer(1, 0, 0, False)]
)


@pytest.mark.parametrize(
    ("schedule", "in_order", "column", "rows"),
    [
        # Two ranks exchange a chunk to add, then the sums.
        (RING, False, "data_dependency", [NONE, NONE, 1, 0]),
        (RING, False, "before_on_channel", [NONE, NONE, 0, 1]),
        (RING, False, "before_on_connection", [NONE, NONE, 0, 1]),
        (RING, False, "buffer_dependency", [NONE] * 4),
        # Chunks wait for one another in order only: until then all of step 0 has been applied.
        (TWO_CHUNKS, False, "data_dependency", [NONE, NONE, 0, 1]),
        (TWO_CHUNKS, False, "before_on_connection", [NONE] * 4),
        (TWO_CHUNKS, True, "data_dependency", [NONE, NONE, 0, 1]),
        (TWO_CHUNKS, True, "before_on_connection", [NONE, 0, NONE, NONE]),
        # Writes to a chunk wait for one another, whoever sends them, and for all sends of it, on whatever channels.
        (THREE_WRITES, False, "before_in_chunk", [NONE, 0, NONE]),
        (THREE_WRITES, False, "before_on_connection", [NONE, NONE, 1]),
        (THREE_SENDS, False, "buffer_dependency", [NONE, NONE, NONE, 1]),
        (THREE_SENDS, False, "sent_before", [NONE, 0, NONE, NONE]),
        (ring_all_reduce(1), False, "data_dependency", []),
    ],
)
def test_arrows_by_hand(schedule: Schedule, in_order: bool, column: str, rows: list[int]) -> None:
    """Row by row."""
    assert getattr(dependencies(schedule, in_order=in_order), column).tolist() == rows


def test_the_size_of_a_row_is_as_stated() -> None:
    """An engine foresees by it how much memory it will take."""
    arrows = dependencies(ring_all_reduce(5))
    columns = [getattr(arrows, name) for name in Dependencies.__dataclass_fields__]
    assert sum(column.nbytes for column in columns) == BYTES_PER_TRANSFER * len(arrows)
