"""`Sweep`: one collective by many algorithms on many ranks, sizes and networks; saved, and read back for pictures."""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from ringsim.analysis.candidates import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.files import (
    FileFormat,
    JsonFile,
    OpenRecord,
    atomic_file,
    decode,
    encode,
    naming_place,
    parse_json,
    read_text,
    values,
)
from ringsim.libraries import LIBRARY, LIBRARY_ALGORITHMS
from ringsim.registry import base_name
from ringsim.schedule import Collective
from ringsim.text_table import records_csv
from ringsim.units import decimal_number, format_size, plural, whole_number

BASELINE, LIBRARY_RING = "ring", LIBRARY_ALGORITHMS[0]
_TIE = 1e-9  # two algorithms that do the same in another order differ by rounding alone
_NumRanks = Annotated[int, values.whole(2, values.MAX_RANKS)]


class SweepCell(OpenRecord, frozen=True):
    """One algorithm's time for one number of ranks, network and size, or why there is none.

    num_steps, num_transfers, time_s: None if it was skipped.
    skipped: the reason, empty if it was simulated. taken: algorithm and protocol, where a library chose them; older
    files have no such column.
    """

    collective: Collective
    network: values.Name
    algorithm: values.Name
    num_ranks: _NumRanks
    size_bytes: values.Positive
    num_steps: values.Whole | None
    num_transfers: values.Whole | None
    time_s: values.Seconds | None
    skipped: values.Text
    taken: values.Text = ""

    def __post_init__(self) -> None:
        if (self.time_s is None) != bool(self.skipped):
            raise ValueError("time_s and skipped: must have a time, or a reason why there is none")

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
        """Return the fields and the rates, for CSV and JSON."""
        rates = {"algbw_bytes_per_s": self.algbw_bytes_per_s, "busbw_bytes_per_s": self.busbw_bytes_per_s}
        return {**encode(self), **rates}


def _listed(counts: Sequence[int]) -> str:
    """Return numbers of ranks in words: 4 ranks; 2, 4 and 8 ranks."""
    *first, last = sorted(counts)
    return f"{', '.join(map(str, first))} and {last} ranks" if first else plural(last, "rank")


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest algorithm for one number of ranks, network and size; of equals, the one that the sweep names first.

    over_ring, over_second: how many times as fast as the ring (`Sweep.baseline`) and as the second; None if there is no
    such, or no time passes.
    """

    cell: SweepCell
    over_ring: float | None
    over_second: float | None


class Sweep(JsonFile, frozen=True, forbid_unknown_fields=False):
    """Cells for all combinations, and where they come from.

    networks: by the name that the cells give them, as their `as_dict` has them.
    provenance: versions, machine and command, as `ringsim.measurements.provenance` has them.
    """

    cells: tuple[SweepCell, ...]
    networks: dict[str, dict[str, Any]]
    provenance: dict[str, Any]

    FORMAT: ClassVar = FileFormat("ringsim-sweep", 1, made_by="ringsim sweep --csv")

    def __post_init__(self) -> None:
        if len({cell.collective for cell in self.cells}) != 1:
            raise ValueError("cells: there must be at least one, and all of the same collective")
        places = {(cell.network, cell.algorithm, cell.num_ranks, cell.size_bytes) for cell in self.cells}
        if len(places) < len(self.cells):
            raise ValueError("cells: two describe the same algorithm, network, number of ranks and size: remove one")
        if missing := {cell.network for cell in self.cells} - self.networks.keys():
            raise ValueError(f"networks: {min(missing)!r} is missing, but cells name it")

    def __repr__(self) -> str:
        algorithms = ", ".join(self.algorithms) if len(self.algorithms) < 4 else f"{len(self.algorithms)} algorithms"
        ranks = "-".join(dict.fromkeys(str(count) for count in (self.ranks[0], self.ranks[-1])))
        sizes = " - ".join(dict.fromkeys(format_size(size) for size in (self.sizes_bytes[0], self.sizes_bytes[-1])))
        networks = ", ".join(self.networks)
        run = f"{self.collective.value}, {algorithms}, {ranks} ranks, {sizes} on {networks}"
        return f"Sweep({run}: {len(self.cells)} cells)"

    @property
    def collective(self) -> Collective:
        return self.cells[0].collective

    @property
    def algorithms(self) -> list[str]:
        return list(dict.fromkeys(cell.algorithm for cell in self.cells))

    @property
    def ranks(self) -> list[int]:
        return sorted({cell.num_ranks for cell in self.cells})

    @property
    def sizes_bytes(self) -> list[int]:
        return sorted({cell.size_bytes for cell in self.cells})

    def winners(self) -> dict[tuple[str, int, int], Winner]:
        """Return the fastest by (network, num_ranks, size_bytes); no entry where all were skipped."""
        rivals: dict[tuple[str, int, int], list[SweepCell]] = {}
        for cell in self.cells:
            if cell.time_s is not None:
                rivals.setdefault((cell.network, cell.num_ranks, cell.size_bytes), []).append(cell)
        baselines = {network: self.baseline(network) for network in self.networks}
        return {place: _winner(cells, baselines[place[0]]) for place, cells in rivals.items()}

    def baseline(self, network: str) -> str:
        """Return the algorithm that others are compared with: a ring, which of a library uses all NICs of a host."""
        swept = {cell.algorithm for cell in self.cells if cell.network == network and cell.time_s}
        return LIBRARY_RING if LIBRARY_RING in swept else BASELINE

    def not_of_the_library(self) -> list[str]:
        """Return the algorithms that were simulated on networks of a library that does not have them."""
        described = {name for name, facts in self.networks.items() if facts.get("spec", {}).get("protocols")}
        swept = {cell.algorithm: None for cell in self.cells if cell.network in described and cell.time_s}
        own = {BASELINE, LIBRARY, *LIBRARY_ALGORITHMS}
        return [name for name in swept if base_name(name) not in own] if own & swept.keys() else []

    def skipped(self) -> list[str]:
        """Return the skipped algorithms and why, one line for each reason and set of algorithms."""
        names: dict[tuple[str, int], dict[str, None]] = {}
        for cell in self.cells:
            if cell.skipped:
                names.setdefault((cell.skipped, cell.num_ranks), {})[cell.algorithm] = None
        ranks: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for (why, num_ranks), some in names.items():
            ranks.setdefault((why, tuple(some)), []).append(num_ranks)
        every = len(self.algorithms)
        return [
            f"{'all algorithms' if len(some) == every > 1 else ', '.join(some)} on {_listed(counts)} skipped: {why}"
            for (why, some), counts in ranks.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return {**self._header(), "cells": [cell.as_dict() for cell in self.cells]}

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write `csv_text`; raises OSError."""
        with atomic_file(path) as file:
            file.write(self.csv_text().encode())

    def csv_text(self) -> str:
        """Return a line for each cell, below the column names and one line of JSON after a `#`."""
        return f"# {json.dumps(self._header())}\n{records_csv([cell.as_dict() for cell in self.cells])}"

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> Self:
        """Return what `to_csv` wrote. Raises OSError, and ValueError for a file that it did not write."""
        first, _, table = read_text(path).partition("\n")
        with naming_place(f"{path}, line 1"):
            try:
                header = parse_json(first.removeprefix("#"))
            except ValueError:
                header = None
            cls.FORMAT.read(header)
        cells = list(_read_lines(str(path), table))
        with naming_place(path):
            return cls.from_dict({**header, "cells": cells})

    def _header(self) -> dict[str, Any]:
        return self.FORMAT.write({"networks": self.networks, "provenance": self.provenance})


def _read_lines(path: str, table: str) -> Iterator[SweepCell]:
    """Yield the cells of a table below the first line; the rates there are left, as they follow from the time.

    Raises ValueError, which names file, line and column.
    """
    rows = csv.DictReader(table.split("\n"), strict=True)
    try:
        for line, row in enumerate(rows, start=3):
            with naming_place(f"{path}, line {line}"):
                if None in row:
                    raise ValueError("must have a value for each column, and none without a name")
                known = {name: _value(name, text) for name, text in row.items() if text is not None}
                yield decode(SweepCell, known)
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num + 1}: is not CSV: {error}") from None


def _value(column: str, text: str) -> Any:
    """Return the value as JSON would have it: a number where a column holds numbers, None where there is none."""
    if not column.startswith(("num_", "size_", "time_")):
        return text
    if (count := whole_number(text)) is not None:
        return count
    try:
        return decimal_number(text) if text else None
    except ValueError:
        return text


def _winner(cells: Sequence[SweepCell], baseline: str) -> Winner:
    times = {cell.algorithm: cell.time_s for cell in cells if cell.time_s is not None}
    least = min(times.values())
    winner = next(cell for cell in cells if times[cell.algorithm] <= least * (1 + _TIE))
    others = [time_s for name, time_s in times.items() if name != winner.algorithm]
    return Winner(winner, _ratio(times.get(baseline), least), _ratio(min(others, default=None), least))


def _ratio(slower_s: float | None, faster_s: float) -> float | None:
    return slower_s / faster_s if slower_s is not None and faster_s > 0 else None
