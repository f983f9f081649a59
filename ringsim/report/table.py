"""`DataTable`: records as rows of columns, written as text or HTML.

A `TableColumn` names an attribute of the records, whose ending implies the unit: `time_s`, `size_bytes`.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from ringsim.text_table import GAP, align_columns, html_template
from ringsim.units import format_rate, format_size, format_time


class TableCell(NamedTuple):
    """The text of a cell, and its number for sorting."""

    text: str
    number: float | None = None

    @property
    def key(self) -> str | None:
        if self.number is None:
            return None
        return f"{'-' * (self.number < 0)}1e999" if math.isinf(self.number) else repr(float(self.number))


EMPTY_CELL = TableCell("-", -math.inf)
NEVER = TableCell("never finishes", math.inf)
Row = Sequence[TableCell | str]


class TableColumn(NamedTuple):
    """A column: an attribute of records, such as run.batch_s, or a key of dicts; "" for the record itself.

    heading, cell: None: by the attribute's name.
    """

    attribute: str
    heading: str | None = None
    cell: Callable[[Any], TableCell] | None = None

    @property
    def title(self) -> str:
        return _UNITS.sub("", self.attribute).replace("_", " ") if self.heading is None else self.heading

    def cell_of(self, record: Any) -> TableCell:
        if isinstance(record, dict):
            value = record.get(self.attribute)
        else:
            value = attrgetter(self.attribute)(record) if self.attribute else record
        return self.cell(value) if self.cell else _cell(self.attribute, value)


class DataTable:
    """A table of any size; columns in which every cell has a number are right-aligned.

    >>> DataTable(("size", "by"), [(size_cell(2048), "ring")]).lines()
    [' size  by', '2 KiB  ring']
    """

    def __init__(self, columns: Sequence[str], rows: Iterable[Row]) -> None:
        self.columns = columns
        self.rows = [[cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row] for row in rows]
        by_column = list(zip(*self.rows, strict=True)) or [()] * len(columns)
        self._is_right = [all(cell.number is not None for cell in cells) for cells in by_column]

    @classmethod
    def of(cls, records: Iterable[Any], columns: Iterable[TableColumn | str]) -> "DataTable":
        """Return one row per record; a string stands for its column.

        >>> DataTable.of([TableColumn("step_s", "time")], ["attribute", "heading"]).lines()
        ['attribute  heading', 'step_s     time']
        """
        described = [TableColumn(column) if isinstance(column, str) else column for column in columns]
        rows = [[column.cell_of(record) for column in described] for record in records]
        return cls([column.title for column in described], rows)

    def lines(self, gap: str = GAP, width: int | None = None) -> list[str]:
        alignment = "".join("r" if is_right else "l" for is_right in self._is_right)
        return align_columns([self.columns, *([cell.text for cell in row] for row in self.rows)], alignment, gap, width)

    def text(self, width: int | None = None) -> str:
        return "\n".join(self.lines(width=width))

    def html(self, name: str = "") -> str:
        """Return a table element; name: by which report.js and the page's address sort it."""
        template = html_template(Path(__file__).with_name("table.j2"))
        return template.render(name=name, columns=self.columns, rows=self.rows, is_right=self._is_right)


def time_cell(time_s: float | None) -> TableCell:
    """Return a time with its unit, or "never"."""
    if time_s is None:
        return EMPTY_CELL
    return TableCell("never" if math.isinf(time_s) else format_time(time_s) if time_s else "0", time_s)


def size_cell(size_bytes: float) -> TableCell:
    """Return a size with its unit."""
    return TableCell(format_size(size_bytes), size_bytes)


def rate_cell(bytes_per_s: float | None) -> TableCell:
    """Return a rate with its unit."""
    if bytes_per_s is None:
        return EMPTY_CELL
    return TableCell("no limit" if math.isinf(bytes_per_s) else format_rate(bytes_per_s), bytes_per_s)


def count_cell(count: float | None, digits: int = 0) -> TableCell:
    """Return a number."""
    if count is None:
        return EMPTY_CELL
    return TableCell(f"{count:,.{digits}f}" if abs(count) < 1e9 else f"{count:.3g}", count)


def share_cell(share: float | None, digits: int = 0) -> TableCell:
    """Return a share as per cent."""
    return EMPTY_CELL if share is None else TableCell(f"{share:.{digits}%}", share)


def error_cell(error: float | None, digits: int = 0) -> TableCell:
    """Return a signed error as per cent."""
    return EMPTY_CELL if error is None else TableCell(f"{error:+.{digits}%}", abs(error))


def ends_cell(low_s: float, high_s: float) -> TableCell:
    """Return an interval of times, sorted by its width."""
    return TableCell(f"{format_time(low_s)} to {format_time(high_s)}", high_s - low_s)


def _cell(name: str, value: Any) -> TableCell:
    if value is None:
        return NEVER if name in ("time_s", "step_s") else EMPTY_CELL
    if isinstance(value, bool):
        return TableCell("yes" if value else "no")
    if isinstance(value, str | Enum):
        return TableCell(str(value.value if isinstance(value, Enum) else value) or "-")
    if isinstance(value, dict):
        form = "{} {:.0%}" if name.endswith("shares") else "{} {:.4g}"
        return TableCell(", ".join(form.format(*item) for item in value.items() if item[1] is not None) or "-")
    if isinstance(value, tuple):
        return ends_cell(*value)
    return next(cell for ending, cell in _CELLS.items() if name.endswith(ending))(value)


_CELLS: dict[str, Callable[[Any], TableCell]] = {
    "bytes_per_s": rate_cell, "tokens_per_s": count_cell, "samples_per_s": count_cell,
    "_s": time_cell, "_bytes": size_cell, "error": error_cell, "share": share_cell, "efficiency": share_cell,
    "spread": share_cell, "loss": partial(count_cell, digits=4),
    "loss_difference": lambda value: TableCell(f"{value:.1e}", value),
    "": lambda value: count_cell(value, 0 if isinstance(value, int) else 2),
}  # fmt: skip
_UNITS = re.compile(r"^.*\.|^num_|_bytes_per_s$|_bytes$|_s$")
