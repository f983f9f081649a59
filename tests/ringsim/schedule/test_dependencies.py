"""The arrows between transfers, by hand; the engines that follow them are held against a program without arrows."""

import pytest

from ringsim import Schedule, Transfer, ring_all_reduce
from ringsim.schedule.dependencies import BYTES_PER_TRANSFER, Dependencies, dependencies
from ringsim.schedule.flow import NO_ROW
from tests.ringsim.strategies import listed

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
