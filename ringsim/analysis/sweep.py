"""`Sweep`: one collective by many algorithms on many ranks, sizes and networks; saved, and read back for pictures."""

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ringsim.analysis.sweep_cell import SweepCell, read_cells
from ringsim.analysis.sweep_plan import require_plan
from ringsim.files import atomic_file, naming_place, parse_json, quoted, read_text
from ringsim.schedule import Collective
from ringsim.units import format_size, plural

FORMAT = "ringsim-sweep"
VERSION = 1
BASELINE = "ring"
_TIE = 1e-9  # two algorithms that do the same in another order differ by rounding alone


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest algorithm for one number of ranks, network and size; of equals, the one that the sweep names first.

    over_ring, over_second: how many times as fast as the ring and as the second; None if there is no such, or no
    time passes.
    """

    cell: SweepCell
    over_ring: float | None
    over_second: float | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Cells for all combinations, and where they come from.

    networks: by the name that the cells give them, as their `as_dict` has them.
    provenance: versions, machine and command, as `ringsim.measurements.provenance` has them.
    planned: of a sweep that was interrupted, `SweepPlan.as_dict`; None if no cell is missing.
    """

    cells: tuple[SweepCell, ...]
    networks: dict[str, dict[str, Any]]
    provenance: dict[str, Any]
    planned: dict[str, Any] | None = None

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
        """Who is fastest, by (network, num_ranks, size_bytes); nobody where all were skipped."""
        rivals: dict[tuple[str, int, int], list[SweepCell]] = {}
        for cell in self.cells:
            if cell.time_s is not None:
                rivals.setdefault((cell.network, cell.num_ranks, cell.size_bytes), []).append(cell)
        return {place: _winner(cells) for place, cells in rivals.items()}

    def skipped(self) -> list[str]:
        """What was skipped and why, one line for each reason and number of ranks."""
        names: dict[tuple[int, str], dict[str, None]] = {}
        for cell in self.cells:
            if cell.skipped:
                names.setdefault((cell.num_ranks, cell.skipped), {})[cell.algorithm] = None
        every = len(self.algorithms)
        who = {place: "all algorithms" if len(some) == every > 1 else ", ".join(some) for place, some in names.items()}
        return [f"{who[num_ranks, why]} on {plural(num_ranks, 'rank')} skipped: {why}" for num_ranks, why in names]

    def as_dict(self) -> dict[str, Any]:
        """All of it for JSON."""
        return {**self._header(), "cells": [cell.as_dict() for cell in self.cells]}

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes `csv_text`; raises OSError."""
        with atomic_file(path) as file:
            file.write(self.csv_text().encode())

    def csv_text(self) -> str:
        """A line for each cell, below the column names and one line of JSON after a `#`."""
        text = io.StringIO()
        text.write(f"# {json.dumps(self._header())}\n")
        table = csv.DictWriter(text, self.cells[0].as_dict().keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(cell.as_dict() for cell in self.cells)
        return text.getvalue()

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> Self:
        """What `to_csv` wrote; raises OSError, and ValueError for a file that it did not write."""
        first, _, table = read_text(Path(path)).partition("\n")
        header = _read_header(str(path), first)
        cells = tuple(read_cells(str(path), table))
        if not cells or len({cell.collective for cell in cells}) > 1:
            raise ValueError(f"{path}: needs at least one line with a time, and all of the same collective")
        if missing := {cell.network for cell in cells} - set(header["networks"]):
            raise ValueError(f"{path}, line 1: says nothing of the network {min(missing)!r} of the lines below")
        return cls(cells, **header)

    def _header(self) -> dict[str, Any]:
        header = {"format": FORMAT, "version": VERSION, "networks": self.networks, "provenance": self.provenance}
        return header if self.planned is None else {**header, "planned": self.planned}


def _winner(cells: Sequence[SweepCell]) -> Winner:
    times = {cell.algorithm: cell.time_s for cell in cells if cell.time_s is not None}
    least = min(times.values())
    winner = next(cell for cell in cells if times[cell.algorithm] <= least * (1 + _TIE))
    others = [time_s for name, time_s in times.items() if name != winner.algorithm]
    return Winner(winner, _ratio(times.get(BASELINE), least), _ratio(min(others, default=None), least))


def _ratio(slower_s: float | None, faster_s: float) -> float | None:
    return slower_s / faster_s if slower_s is not None and faster_s > 0 else None


def _read_header(path: str, line: str) -> dict[str, Any]:
    try:
        header = parse_json(line.removeprefix("#"))
    except ValueError:
        header = None
    if not isinstance(header, dict) or (header.get("format"), header.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"{path}, line 1: not a {FORMAT} file of version {VERSION}; `ringsim sweep --csv` writes one")
    networks, made_by = header.get("networks"), header.get("provenance")
    if not isinstance(networks, dict) or not all(isinstance(network, dict) for network in networks.values()):
        raise ValueError(f"{path}, line 1: networks {quoted(networks)}: must be an object with an object for each")
    if not isinstance(made_by, dict):
        raise ValueError(f"{path}, line 1: provenance {quoted(made_by)}: must be an object")
    planned = header.get("planned")
    if planned is not None:
        with naming_place(f"{path}, line 1"):
            require_plan(planned)
    return {"networks": networks, "provenance": made_by, "planned": planned}
