"""Tables of a page, whose rows a click on a heading sorts; report.js does that."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ringsim.units import format_rate, format_size, format_time


@dataclass(frozen=True, slots=True)
class TableCell:
    """What a cell shows, and the number by which it is sorted; by its text if there is none."""

    text: str
    number: float | None = None


NOTHING = TableCell("-", -math.inf)
Row = Sequence[TableCell | str]


def time_cell(time_s: float | None) -> TableCell:
    """Returns a time with its unit."""
    return NOTHING if time_s is None else TableCell(format_time(time_s) if time_s else "0", time_s)


def size_cell(size_bytes: float) -> TableCell:
    """Returns a size with its unit."""
    return TableCell(format_size(size_bytes), size_bytes)


def rate_cell(bytes_per_s: float | None) -> TableCell:
    """Returns a rate with its unit."""
    if bytes_per_s is None:
        return NOTHING
    return TableCell("no limit" if math.isinf(bytes_per_s) else format_rate(bytes_per_s), bytes_per_s)


def count_cell(count: float | None, digits: int = 0) -> TableCell:
    """Returns a number."""
    if count is None:
        return NOTHING
    return TableCell(f"{count:,.{digits}f}" if abs(count) < 1e9 else f"{count:.3g}", count)


def share_cell(share: float | None, signed: bool = False) -> TableCell:
    """Returns a share as per cent; signed: an error, sorted by its size."""
    if share is None:
        return NOTHING
    return TableCell(f"{share:+.0%}" if signed else f"{share:.0%}", abs(share) if signed else share)


def ends_cell(low_s: float, high_s: float) -> TableCell:
    """Returns an interval of times, sorted by its width."""
    return TableCell(f"{format_time(low_s)} to {format_time(high_s)}", high_s - low_s)


def table(name: str, title: str, headings: Sequence[str], rows: Sequence[Row], note: str = "") -> str:
    """Returns the HTML of a table, "" if it has no rows.

    name: by which the address of a page can ask for an order: #sort=NAME:COLUMN. note: plain text below the title.
    """
    if not rows:
        return ""
    cells = [[cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row] for row in rows]
    right = [all(row[index].number is not None for row in cells) for index in range(len(headings))]
    head = "".join(_heading(text, is_right) for text, is_right in zip(headings, right, strict=True))
    body = "\n".join(f"<tr>{''.join(map(_cell, row, right))}</tr>" for row in cells)
    below = f'<p class="faint">{escape(note)}</p>' if note else ""
    return (
        f'<section><h2 id="{name}">{escape(title)}</h2>{below}<div class="wide">'
        f'<table class="sortable" data-name="{name}"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>'
        "</div></section>"
    )


def _heading(text: str, is_right: bool) -> str:
    return f'<th scope="col"{_side(is_right)}><button type="button">{escape(text)}</button></th>'


def _cell(cell: TableCell, is_right: bool) -> str:
    key = "" if cell.number is None else f' data-key="{_key(cell.number)}"'
    return f"<td{_side(is_right)}{key}>{escape(cell.text)}</td>"


def _key(number: float) -> str:
    """As JavaScript reads it."""
    return f"{'-' * (number < 0)}1e999" if math.isinf(number) else repr(float(number))


def _side(is_right: bool) -> str:
    return ' class="right"' if is_right else ""
