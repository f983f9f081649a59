"""Tables as lines of text or CSV, wrapped text, and templates."""

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringsim.units import format_rate, format_size, format_time, plural

if TYPE_CHECKING:
    from jinja2 import Template

GAP = "  "  # between two columns
WIDTH = 80  # columns of a terminal; wider output is printed on request only
LEAST_WRAPPED = 16  # characters of a wrapped column
MAX_NAMED = 8  # ranks, chunks, rows and so on that a text names; of more it gives the number
MAX_CLAUSES = 4  # likewise of those of which it says a few words each


def align_columns(
    rows: Sequence[Sequence[str]], alignment: str = "l", gap: str = GAP, width: int | None = None
) -> list[str]:
    """Return a line for each row, with columns as wide as their longest cells.

    alignment: l or r for each column; the last letter also holds for further columns.
    width: of the table; cells of the last column wrap beyond it.

    >>> align_columns([("size", "ranks"), ("64 KiB", "2")], "lr")
    ['size    ranks', '64 KiB      2']
    """
    if not rows:
        return []
    if width is not None:
        rows = [line for row in rows for line in _wrapped(row, _room_for_last(rows, gap, width))]
    columns = list(zip(*rows, strict=True))
    letters = alignment + alignment[-1] * (len(columns) - len(alignment))
    padded = []
    for column, letter in zip(columns, letters, strict=True):
        width = max(map(len, column))
        padded.append([cell.ljust(width) if letter == "l" else cell.rjust(width) for cell in column])
    return [gap.join(line).rstrip() for line in zip(*padded, strict=True)]


def wrap_text(text: str, width: int | None = WIDTH, indent: str = "") -> str:
    """Return the text in lines of at most `width` characters, further lines indented; width None: unchanged.

    >>> print(wrap_text("what does not fit goes on in the next line", 30, "  "))
    what does not fit goes on in
      the next line
    """
    return text if width is None else "\n".join(_lines(text, width, indent))


def first_named(names: Sequence[str], more: str = "more", most: int = MAX_NAMED) -> list[str]:
    """Return the names; of more than `most` the first ones, and the number of the others.

    >>> first_named(["rank 0", "rank 1", "rank 2"], "more ranks", most=1)
    ['rank 0', 'and 2 more ranks']
    """
    others = len(names) - most
    return [*names[:most], *([f"and {others} {more}"] if others > 0 else [])]


def records_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records with the same fields as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def load_template(path: Path, filters: Mapping[str, Any] | None = None, **settings: Any) -> "Template":
    """Return the template in a file. filters, settings: of `jinja2.Environment`; unknown names are errors."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  few commands need it

    environment = Environment(loader=FileSystemLoader(path.parent), undefined=StrictUndefined, **settings)
    environment.filters.update(filters or {})
    return environment.get_template(path.name)


@cache
def text_template(path: Path) -> "Template":
    """Return a template of plain text with filters for units; `module` has its macros."""
    filters = {"plural": plural, "rate": format_rate, "sentence": as_sentence, "size": format_size, "time": format_time}
    return load_template(path, filters, trim_blocks=True)


@cache
def html_template(path: Path) -> "Template":
    """Return a template of HTML, which escapes what is put into it."""
    return load_template(path, autoescape=True, trim_blocks=True)


def as_sentence(text: str) -> str:
    """Return the text with a capital and a full stop.

    >>> as_sentence("nothing is sent")
    'Nothing is sent.'
    """
    return f"{text[:1].upper()}{text[1:]}."


def _lines(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _room_for_last(rows: Sequence[Sequence[str]], gap: str, width: int) -> int:
    used = sum(max(map(len, column)) + len(gap) for column in list(zip(*rows, strict=True))[:-1])
    return max(width - used, LEAST_WRAPPED)


def _wrapped(row: Sequence[str], room: int) -> list[Sequence[str]]:
    first, *more = _lines(row[-1], room) or [""]
    return [(*row[:-1], first), *((*[""] * (len(row) - 1), line) for line in more)]
