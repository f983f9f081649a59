"""`SweepCell`: one simulated time of a sweep, and the lines of a CSV file that hold such cells."""

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ringsim.analysis.rates import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.files import MAX_RANKS, MAX_S, quoted
from ringsim.schedule import Collective
from ringsim.units import MAX_VALUE, decimal_number, whole_number


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One algorithm's time for one number of ranks, network and size, or why there is none.

    num_steps, num_transfers, time_s: None if it was skipped.
    skipped: the reason, empty if it was simulated. taken: algorithm and protocol, where a library chose them.
    """

    collective: Collective
    network: str
    algorithm: str
    num_ranks: int
    size_bytes: int
    num_steps: int | None
    num_transfers: int | None
    time_s: float | None
    skipped: str
    taken: str = ""

    @property
    def name(self) -> str:
        """The algorithm, and what it stands for where a library chose: nccl (nvls Simple)."""
        return f"{self.algorithm} ({self.taken})" if self.taken else self.algorithm

    @property
    def algbw_bytes_per_s(self) -> float | None:
        """None where no time passes, or none is known."""
        return algbw_bytes_per_s(self.size_bytes, self.time_s or 0.0)

    @property
    def busbw_bytes_per_s(self) -> float | None:
        """None where no time passes, or none is known."""
        return busbw_bytes_per_s(self.collective, self.num_ranks, self.size_bytes, self.time_s or 0.0)

    def as_dict(self) -> dict[str, Any]:
        """The fields and the rates, for CSV and JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        rates = {"algbw_bytes_per_s": self.algbw_bytes_per_s, "busbw_bytes_per_s": self.busbw_bytes_per_s}
        return values | {"collective": self.collective.value} | rates


def read_cells(path: str, table: str) -> Iterator[SweepCell]:
    """The cells of a table; the rates there are left, as they follow from the time.

    path: of the file, whose first line is not part of `table`. Raises ValueError, which names file, line and column.
    """
    rows = csv.DictReader(table.split("\n"), strict=True)
    seen: set[tuple[object, ...]] = set()
    try:
        for number, row in enumerate(rows, start=3):
            cell = read_cell(f"{path}, line {number}", row)
            key = cell.collective, cell.network, cell.algorithm, cell.num_ranks, cell.size_bytes
            if key in seen:
                raise ValueError(f"{path}, line {number}: a line above is of the same cell: there must be one")
            seen.add(key)
            yield cell
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num + 1}: is not CSV: {error}") from None


def read_cell(place: str, row: Mapping[Any, Any]) -> SweepCell:
    """The cell of a line, by the names of the columns. Raises ValueError, which names the place and the column."""
    read = {}
    for name, reader in _READERS.items():
        text = row.get(name, "" if name == "taken" else None)  # older files have no such column
        if not isinstance(text, str) or None in row:
            raise ValueError(f"{place}: not a line of a sweep: must have a value for {name}, and none without a name")
        try:
            read[name] = reader(text)
        except ValueError as error:
            raise ValueError(f"{place}: not a line of a sweep: {name} {quoted(text)}: {error}") from None
    cell = SweepCell(**read)
    if (cell.time_s is None) != bool(cell.skipped):
        raise ValueError(f"{place}: time_s and skipped: must have a time, or a reason why there is none")
    if cell.time_s == 0 and row.get("algbw_bytes_per_s"):
        raise ValueError(f"{place}: time_s 0: must be greater than 0, as its algbw_bytes_per_s is known")
    return cell


def _text(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError("must be text of one line")
    return text


def _reason(text: str) -> str:
    return _text(text) if text else ""


def _whole(most: int, least: int = 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = whole_number(text)
        if number is None or not least <= number <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return number

    return read


def _whole_or_none(text: str) -> int | None:
    return _whole(MAX_VALUE, 0)(text) if text else None


def _time_or_none(text: str) -> float | None:
    if not text:
        return None
    try:
        time_s = decimal_number(text)
    except ValueError:
        time_s = -1.0
    if not 0 <= time_s <= MAX_S:
        raise ValueError(f"must be seconds from 0 to {MAX_S:g}")
    return time_s


_READERS: dict[str, Callable[[str], Any]] = {
    "collective": Collective,
    "network": _text,
    "algorithm": _text,
    "num_ranks": _whole(MAX_RANKS, 2),
    "size_bytes": _whole(MAX_VALUE),
    "num_steps": _whole_or_none,
    "num_transfers": _whole_or_none,
    "time_s": _time_or_none,
    "skipped": _reason,
    "taken": _reason,
}
