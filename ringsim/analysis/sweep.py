"""`Sweep`: one collective by many algorithms on many ranks, sizes and networks; saved, and read back for pictures."""

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Self

from ringsim.analysis.sweep_cell import SweepCell, read_cells
from ringsim.display import Displayed
from ringsim.files import atomic_file, parse_json, quoted, read_text
from ringsim.measurements import provenance
from ringsim.network import AnyNetwork
from ringsim.registry import Algorithm, build, size_variant
from ringsim.schedule import Collective, Schedule, estimated_transfers, format_count
from ringsim.simulation import predict_time
from ringsim.units import format_size, plural

FORMAT = "ringsim-sweep"
VERSION = 1
MAX_TRANSFERS = 10**7  # of a schedule; one that is listed takes about 1 GB then
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
class Sweep(Displayed):
    """Cells for all combinations, and where they come from.

    networks: by the name that the cells give them, as their `as_dict` has them.
    provenance: versions, machine and command, as `ringsim.measurements.provenance` has them.
    """

    cells: tuple[SweepCell, ...]
    networks: dict[str, dict[str, Any]]
    provenance: dict[str, Any]

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
        return {"format": FORMAT, "version": VERSION, "networks": self.networks, "provenance": self.provenance}


def run_sweep(
    collective: Collective,
    algorithms: Sequence[str],
    ranks: Sequence[int],
    sizes_bytes: Sequence[int],
    networks: Mapping[str, AnyNetwork],
    on_progress: Callable[[int], object] = lambda _: None,
    *,
    max_transfers: float = MAX_TRANSFERS,
) -> Sweep:
    """Simulate all combinations; a schedule is built once for all sizes that share it, and for all networks.

    on_progress: is told how many cells have been done since it was last told.
    max_transfers: a schedule that has more is skipped, unbuilt as far as that can be estimated.

    Raises ValueError if there is nothing to do, a size is below 1 or a number of ranks below 2, or an algorithm can be
    built, or a network has room, for no number of ranks.

        >>> from ringsim import Collective, Network, run_sweep
        >>> networks = {"mine": Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9)}
        >>> sweep = run_sweep(Collective.ALL_REDUCE, ["ring", "recursive_doubling"], [8], [2**10, 2**26], networks)
        >>> [winner.cell.algorithm for winner in sweep.winners().values()]
        ['recursive_doubling', 'ring']
    """
    if not (algorithms and ranks and sizes_bytes and networks):
        raise ValueError("a sweep needs at least one algorithm, number of ranks, size and network")
    _refuse_too_small(min(ranks), min(sizes_bytes))
    without_room = _without_room(networks, sorted(set(ranks)))
    sizes = sorted(set(sizes_bytes))
    cells: list[SweepCell] = []
    for algorithm in dict.fromkeys(algorithms):
        for num_ranks, by_size in _build_all(collective, algorithm, sorted(set(ranks)), sizes, max_transfers):
            for (name, network), size_bytes in product(networks.items(), sizes):
                built = by_size[size_bytes]
                skipped = built.skipped or without_room.get((name, num_ranks), "")
                time_s = predict_time(built.schedule, network, size_bytes) if built.schedule and not skipped else None
                if time_s == math.inf:
                    time_s, skipped = None, f"never finishes on {name} with {size_bytes:,} bytes, as something fails"
                place = (collective, name, algorithm, num_ranks, size_bytes)
                cells.append(SweepCell(*place, built.num_steps, built.num_transfers, time_s, skipped))
                on_progress(1)
    return Sweep(tuple(cells), {name: dict(network.as_dict()) for name, network in networks.items()}, provenance())


def _refuse_too_small(num_ranks: int, size_bytes: int) -> None:
    if size_bytes < 1:
        raise ValueError(f"size {size_bytes}: a sweep needs sizes of at least 1 byte")
    if num_ranks < 2:
        raise ValueError(f"num_ranks {num_ranks}: a sweep needs at least 2 ranks, since one alone takes no time")


def _without_room(networks: Mapping[str, AnyNetwork], ranks: Sequence[int]) -> dict[tuple[str, int], str]:
    """Why a network cannot have so many ranks; ValueError if it can have none of these numbers."""
    reasons: dict[tuple[str, int], str] = {}
    for (name, network), num_ranks in product(networks.items(), ranks):
        try:
            network.topology(num_ranks)
        except ValueError as error:
            reasons[name, num_ranks] = str(error)
            if all((name, count) in reasons for count in ranks):
                raise
    return reasons


class _Built(NamedTuple):
    """A schedule, counted once for all sizes; or why there is none."""

    schedule: Schedule | None = None
    num_steps: int | None = None
    num_transfers: int | None = None
    skipped: str = ""


def _build_all(
    collective: Collective, algorithm: str, ranks: Sequence[int], sizes_bytes: Sequence[int], max_transfers: float
) -> Iterator[tuple[int, dict[int, _Built]]]:
    """The schedule of each size, for one number of ranks at a time; ValueError if none can be built."""
    num_errors = 0
    for num_ranks in ranks:
        try:
            yield num_ranks, _build_sizes(collective, algorithm, num_ranks, sizes_bytes, max_transfers)
        except ValueError as error:
            num_errors += 1
            if num_errors == len(ranks):
                raise
            yield num_ranks, dict.fromkeys(sizes_bytes, _Built(skipped=" ".join(str(error).split())))


def _build_sizes(
    collective: Collective, algorithm: str, num_ranks: int, sizes_bytes: Sequence[int], max_transfers: float
) -> dict[int, _Built]:
    variants: dict[int, _Built] = {}
    by_size = {}
    for size_bytes in sizes_bytes:
        variant = size_variant(collective, algorithm, num_ranks, size_bytes)
        if variant not in variants:
            make = partial(build, collective, algorithm, size_bytes=size_bytes)
            variants[variant] = _build(make, num_ranks, max_transfers)
        by_size[size_bytes] = variants[variant]
    return by_size


def _build(make: Algorithm, num_ranks: int, max_transfers: float) -> _Built:
    estimate = estimated_transfers(make, num_ranks)
    schedule = make(num_ranks) if estimate <= max_transfers else None
    num_transfers = estimate if schedule is None else schedule.num_transfers
    if schedule is None or num_transfers > max_transfers:
        return _Built(skipped=f"{format_count(num_transfers)} transfers, above {format_count(max_transfers)}")
    return _Built(schedule, schedule.num_steps, num_transfers)


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
    return {"networks": networks, "provenance": made_by}
