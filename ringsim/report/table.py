"""`DataTable`: columns and rows, written as text, HTML or CSV.

Its cells are texts, or `TableCell`s, which also know their number: a page sorts by it, and a column of numbers is
aligned to the right.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ringsim.text_table import GAP, align_columns
from ringsim.units import format_rate, format_size, format_time


class TableCell(NamedTuple):
    """The text of a cell, and the number by which it is sorted; without one it is sorted by its text."""

    text: str
    number: float | None = None


NOTHING = TableCell("-", -math.inf)
NEVER = TableCell("never finishes", math.inf)
Row = Sequence[TableCell | str]


class DataTable:
    """A table of any size.

    >>> DataTable(("size", "by"), [(size_cell(2048), "ring")]).lines()
    [' size  by', '2 KiB  ring']
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Take the headings, and rows of as many cells."""
        self.columns = columns
        self.rows = [[cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row] for row in rows]
        by_column = list(zip(*self.rows, strict=True)) or [()] * len(columns)
        self._is_right = [all(cell.number is not None for cell in cells) for cells in by_column]

    def lines(self, gap: str = GAP, width: int | None = None) -> list[str]:
        """Return the headings and rows as aligned lines of at most `width` characters, see `align_columns`."""
        alignment = "".join("r" if is_right else "l" for is_right in self._is_right)
        return align_columns([self.columns, *([cell.text for cell in row] for row in self.rows)], alignment, gap, width)

    def text(self, width: int | None = None) -> str:
        """Return `lines` as one text."""
        return "\n".join(self.lines(width=width))

    def html(self, name: str = "") -> str:
        """Return a table element; with a name, by which a page's address can ask for an order, report.js sorts it."""
        heading = '<button type="button">{}</button>' if name else "{}"
        titles = (heading.format(escape(column)) for column in self.columns)
        head = "".join(
            f'<th scope="col"{_side(right)}>{title}</th>' for title, right in zip(titles, self._is_right, strict=True)
        )
        body = "\n".join(f"<tr>{''.join(map(_cell_html, row, self._is_right))}</tr>" for row in self.rows)
        start = f'<table class="sortable" data-name="{name}">' if name else "<table>"
        return f"{start}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _cell_html(cell: TableCell, is_right: bool) -> str:
    key = "" if cell.number is None else f' data-key="{_key(cell.number)}"'
    return f"<td{_side(is_right)}{key}>{escape(cell.text)}</td>"


def _key(number: float) -> str:
    """Return a number as JavaScript reads it."""
    return f"{'-' * (number < 0)}1e999" if math.isinf(number) else repr(float(number))


def _side(is_right: bool) -> str:
    return ' class="right"' if is_right else ""


def time_cell(time_s: float | None) -> TableCell:
    """Return a time with its unit."""
    return NOTHING if time_s is None else TableCell(format_time(time_s) if time_s else "0", time_s)


def size_cell(size_bytes: float) -> TableCell:
    """Return a size with its unit."""
    return TableCell(format_size(size_bytes), size_bytes)


def rate_cell(bytes_per_s: float | None) -> TableCell:
    """Return a rate with its unit."""
    if bytes_per_s is None:
        return NOTHING
    return TableCell("no limit" if math.isinf(bytes_per_s) else format_rate(bytes_per_s), bytes_per_s)


def count_cell(count: float | None, digits: int = 0) -> TableCell:
    """Return a number."""
    if count is None:
        return NOTHING
    return TableCell(f"{count:,.{digits}f}" if abs(count) < 1e9 else f"{count:.3g}", count)


def share_cell(share: float | None, digits: int = 0) -> TableCell:
    """Return a share as per cent."""
    return NOTHING if share is None else TableCell(f"{share:.{digits}%}", share)


def error_cell(error: float | None, digits: int = 0) -> TableCell:
    """Return a relative error as per cent with its sign, sorted by its size."""
    return NOTHING if error is None else TableCell(f"{error:+.{digits}%}", abs(error))


def ends_cell(low_s: float, high_s: float) -> TableCell:
    """Return an interval of times, sorted by its width."""
    return TableCell(f"{format_time(low_s)} to {format_time(high_s)}", high_s - low_s)
