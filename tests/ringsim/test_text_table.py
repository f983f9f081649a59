"""Tests of `ringsim.text_table`."""

import pytest

from ringsim.text_table import align_columns

ROWS = [("size", "ranks", ""), ("64 KiB", "2", "held out")]


@pytest.mark.parametrize(
    ("alignment", "lines"),
    [
        ("l", ["size    ranks", "64 KiB  2      held out"]),
        ("r", ["  size  ranks", "64 KiB      2  held out"]),
        ("lr", ["size    ranks", "64 KiB      2  held out"]),
        ("rll", ["  size  ranks", "64 KiB  2      held out"]),
    ],
)
def test_columns_are_as_wide_as_their_longest_cell(alignment: str, lines: list[str]) -> None:
    """The last letter holds for the columns that follow, and no line ends in blanks."""
    assert align_columns(ROWS, alignment) == lines


def test_the_gap_between_columns_can_be_chosen() -> None:
    """Blanks inside a cell stay."""
    assert align_columns([(" a", "b")], gap=" | ") == [" a | b"]


def test_rows_must_have_as_many_cells_as_the_first() -> None:
    """A cell without a column is a bug of the caller."""
    with pytest.raises(ValueError, match="zip"):
        align_columns([("a", "b"), ("c",)])
