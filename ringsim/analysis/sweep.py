"""`run_sweep`: one collective by many algorithms on many ranks, sizes and networks; `Sweep`: its result and files."""

import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, ClassVar, Self

from ringsim import files
from ringsim.algorithms import Algorithm
from ringsim.analysis.costs import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.files import values
from ringsim.libraries import LIBRARIES, LIBRARY, LIBRARY_ALGORITHMS, MESSAGES, Call, library_of, why_not
from ringsim.limits import SWEPT_TRANSFERS, estimated_transfers, format_count
from ringsim.measurements import provenance
from ringsim.network import Network
from ringsim.registry import base_name, build, size_variant
from ringsim.schedule import Collective, Schedule
from ringsim.text_table import records_csv
from ringsim.units import ROUNDING, decimal_number, format_size, plural, whole_number
from ringsim.workers import Workers

BASELINE, LIBRARY_RING = "ring", LIBRARY_ALGORITHMS[0]
_NumRanks = Annotated[int, values.whole(2, values.MAX_RANKS)]


class SweepCell(files.OpenRecord, frozen=True):
    """One algorithm's time for one number of ranks, network and size, or the reason why there is none.

    num_steps, num_transfers, time_s: None if skipped. taken: algorithm and protocol chosen by a library; absent in
    older files.
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
        """The algorithm, and a library's choice: nccl (nvls Simple)."""
        return f"{self.algorithm} ({self.taken})" if self.taken else self.algorithm

    @property
    def algbw_bytes_per_s(self) -> float | None:
        return algbw_bytes_per_s(self.size_bytes, self.time_s or 0.0)

    @property
    def busbw_bytes_per_s(self) -> float | None:
        return busbw_bytes_per_s(self.collective, self.num_ranks, self.size_bytes, self.time_s or 0.0)

    def as_dict(self) -> dict[str, Any]:
        rates = {"algbw_bytes_per_s": self.algbw_bytes_per_s, "busbw_bytes_per_s": self.busbw_bytes_per_s}
        return {**files.encode(self), **rates}


def _listed(counts: Sequence[int]) -> str:
    *first, last = sorted(counts)
    return f"{', '.join(map(str, first))} and {last} ranks" if first else plural(last, "rank")


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest algorithm for one number of ranks, network and size; of equals, the sweep's first.

    over_ring, over_second: speed-up over `Sweep.baseline` and the second fastest; None if unknown.
    """

    cell: SweepCell
    over_ring: float | None
    over_second: float | None


class Sweep(files.JsonFile, frozen=True, forbid_unknown_fields=False):
    """Cells for all combinations, and their origin.

    networks: `as_dict` of each network, by its name in the cells. provenance: see `ringsim.measurements.provenance`.
    """

    cells: tuple[SweepCell, ...]
    networks: dict[str, dict[str, Any]]
    provenance: dict[str, Any]

    FORMAT: ClassVar = files.FileFormat("ringsim-sweep", 1, made_by="ringsim sweep --csv")

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
        """Return the fastest by (network, num_ranks, size_bytes), unless all were skipped."""
        rivals: dict[tuple[str, int, int], list[SweepCell]] = {}
        for cell in self.cells:
            if cell.time_s is not None:
                rivals.setdefault((cell.network, cell.num_ranks, cell.size_bytes), []).append(cell)
        baselines = {network: self.baseline(network) for network in self.networks}
        return {place: _winner(cells, baselines[place[0]]) for place, cells in rivals.items()}

    def baseline(self, network: str) -> str:
        """Return a library's ring, which uses all NICs, or else the ring."""
        swept = {cell.algorithm for cell in self.cells if cell.network == network and cell.time_s}
        return LIBRARY_RING if LIBRARY_RING in swept else BASELINE

    def not_of_the_library(self) -> list[str]:
        described = {name for name, facts in self.networks.items() if facts.get("spec", {}).get("protocols")}
        swept = {cell.algorithm: None for cell in self.cells if cell.network in described and cell.time_s}
        own = {BASELINE, LIBRARY, *LIBRARY_ALGORITHMS}
        return [name for name in swept if base_name(name) not in own] if own & swept.keys() else []

    def skipped(self) -> list[str]:
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
        return {**self._header(), "cells": [cell.as_dict() for cell in self.cells]}

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        with files.atomic_file(path) as file:
            file.write(self.csv_text().encode())

    def csv_text(self) -> str:
        """Return a line of JSON after a `#`, the column names, and a line per cell."""
        return f"# {json.dumps(self._header())}\n{records_csv([cell.as_dict() for cell in self.cells])}"

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of `to_csv`. Raises OSError, and ValueError for any other file."""
        first, _, table = files.read_text(path).partition("\n")
        with files.naming_place(f"{path}, line 1"):
            try:
                header = files.parse_json(first.removeprefix("#"))
            except ValueError:
                header = None
            cls.FORMAT.read(header)
        cells = list(_read_lines(str(path), table))
        with files.naming_place(path):
            return cls.from_dict({**header, "cells": cells})

    def _header(self) -> dict[str, Any]:
        return self.FORMAT.write({"networks": self.networks, "provenance": self.provenance})


def _read_lines(path: str, table: str) -> Iterator[SweepCell]:
    rows = csv.DictReader(table.split("\n"), strict=True)
    try:
        for line, row in enumerate(rows, start=3):
            with files.naming_place(f"{path}, line {line}"):
                if None in row:
                    raise ValueError("must have a value for each column, and none without a name")
                known = {name: _value(name, text) for name, text in row.items() if text is not None}
                yield files.decode(SweepCell, known)
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num + 1}: is not CSV: {error}") from None


def _value(column: str, text: str) -> Any:
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
    winner = next(cell for cell in cells if times[cell.algorithm] <= least * (1 + ROUNDING))
    others = [time_s for name, time_s in times.items() if name != winner.algorithm]
    return Winner(winner, _ratio(times.get(baseline), least), _ratio(min(others, default=None), least))


def _ratio(slower_s: float | None, faster_s: float) -> float | None:
    return slower_s / faster_s if slower_s is not None and faster_s > 0 else None


def run_sweep(  # noqa: PLR0913  a sweep has so many axes
    collective: Collective,
    algorithms: Sequence[str],
    ranks: Sequence[int],
    sizes_bytes: Sequence[int],
    networks: Mapping[str, Network],
    on_progress: Callable[[int], object] = lambda _: None,
    *,
    max_transfers: float = SWEPT_TRANSFERS,
    as_library: bool = False,
    workers: Workers | None = None,
) -> Sweep:
    """Simulate all combinations; a schedule is built once for all networks and sizes that share it.

    on_progress: called with the number of cells done since the last call.
    max_transfers: larger schedules are skipped, if possible before they are built.
    as_library: time schedules as each network's library sends them, and allow LIBRARY, its choice, as an algorithm;
    otherwise time them as `predict_time` does.
    workers: by default this process; the result is the same to the last bit.
    Raises ValueError for an empty axis, a size below 1 or a number of ranks below 2; if an algorithm or a network is
    possible for no number of ranks; or if only the library's choice is requested and known for no cell.

        >>> from ringsim import Collective, Network, run_sweep
        >>> networks = {"mine": Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9)}
        >>> sweep = run_sweep(Collective.ALL_REDUCE, ["ring", "recursive_doubling"], [8], [2**10, 2**26], networks)
        >>> [winner.cell.algorithm for winner in sweep.winners().values()]
        ['recursive_doubling', 'ring']
    """
    if not (algorithms and ranks and sizes_bytes and networks):
        raise ValueError("a sweep needs at least one algorithm, number of ranks, size and network")
    if min(sizes_bytes) < 1:
        raise ValueError(f"size {min(sizes_bytes)}: a sweep needs sizes of at least 1 byte")
    if min(ranks) < 2:
        raise ValueError(f"num_ranks {min(ranks)}: a sweep needs at least 2 ranks, since one alone takes no time")
    ranks, sizes_bytes = sorted(set(ranks)), tuple(sorted(set(sizes_bytes)))
    without_room = _without_room(networks, ranks)
    simulate = _Simulator(collective, sizes_bytes, networks, max_transfers, as_library, without_room)
    workers, names = workers or Workers(), list(dict.fromkeys(algorithms))
    groups = list(product(names, ranks))
    if workers.count > 1:  # the longest tasks first, so that all workers end at about the same time
        groups.sort(key=lambda group: -group[1])
    cells: dict[tuple[str, int], list[SweepCell]] = {}
    refused: dict[str, dict[int, str]] = {name: {} for name in names}
    with closing(workers.run(simulate, groups)) as results:
        for (name, num_ranks), (simulated, refusal) in zip(groups, results, strict=True):
            cells[name, num_ranks] = simulated
            on_progress(len(simulated))
            if refusal:
                refused[name][num_ranks] = refusal
            if len(refused[name]) == len(ranks):
                raise ValueError(refused[name][max(ranks)])
    in_order = tuple(cell for group in product(names, ranks) for cell in cells[group])
    if names == [LIBRARY] and all(cell.num_steps is None for cell in in_order):
        raise ValueError(f"no cell of the sweep can be simulated: {in_order[0].skipped}")
    return Sweep(in_order, {name: dict(network.as_dict()) for name, network in networks.items()}, provenance())


@dataclass(frozen=True, slots=True)
class _Simulator:
    """Simulate an algorithm on some ranks, for all networks and sizes.

    without_room: why a network cannot have a number of ranks.
    """

    collective: Collective
    sizes_bytes: tuple[int, ...]
    networks: Mapping[str, Network]
    max_transfers: float
    as_library: bool
    without_room: Mapping[tuple[str, int], str]

    def __call__(self, group: tuple[str, int]) -> tuple[list[SweepCell], str]:
        algorithm, num_ranks = group
        built: dict[int, Schedule | str] = {}
        refusal = ""
        try:
            built = self._built(algorithm, num_ranks) if algorithm != LIBRARY else {}
        except ValueError as error:
            refusal = str(error)
            built = dict.fromkeys(self.sizes_bytes, " ".join(refusal.split()))
        places = product(self.networks, [algorithm], [num_ranks], self.sizes_bytes)
        return [self._cell(*place, built.get(place[-1], "")) for place in places], refusal

    def _cell(self, network: str, algorithm: str, num_ranks: int, size_bytes: int, built: Schedule | str) -> SweepCell:
        schedule, skipped = (None, built) if isinstance(built, str) else (built, "")
        on, taken, time_s = self.networks[network], "", None
        skipped = skipped or self.without_room.get((network, num_ranks), "") or self._why_not(network, algorithm)
        if not skipped and algorithm == LIBRARY:
            call = Call.on(on, self.collective, num_ranks, size_bytes)
            try:
                plan = LIBRARIES[LIBRARY].choose(on, call, self.max_transfers)
                time_s = plan.time_s()
                schedule, taken = plan.schedule, f"{plan.schedule.algorithm} {plan.protocol.name}"
            except ValueError as error:
                skipped = str(error)
        elif not skipped and schedule:
            time_s = (library_of(on) if self.as_library else MESSAGES).time_s(schedule, on, size_bytes)
        if time_s == math.inf:
            time_s, skipped = None, f"never finishes on {network} with {size_bytes:,} bytes, as something fails"
        num_steps, num_transfers = (schedule.num_steps, schedule.num_transfers) if schedule else (None, None)
        return SweepCell(
            self.collective, network, algorithm, num_ranks, size_bytes, num_steps, num_transfers, time_s, skipped, taken
        )

    def _built(self, algorithm: str, num_ranks: int) -> dict[int, Schedule | str]:
        variants: dict[int, Schedule | str] = {}
        by_size = {}
        for size_bytes in self.sizes_bytes:
            variant = size_variant(self.collective, algorithm, num_ranks, size_bytes)
            if variant not in variants:
                make = partial(build, self.collective, algorithm, size_bytes=size_bytes)
                variants[variant] = _if_small(make, num_ranks, self.max_transfers)
            by_size[size_bytes] = variants[variant]
        return by_size

    def _why_not(self, network: str, algorithm: str) -> str:
        """Return why a network lacks an algorithm, unless all networks lack it."""
        if algorithm == LIBRARY:
            return "" if self.as_library else f"{LIBRARY} is timed only by ringsim sweep"
        reasons = {name: why_not(other, algorithm) for name, other in self.networks.items()}
        return "" if all(reasons.values()) or not reasons[network] else f"{network} {reasons[network]}"


def _without_room(networks: Mapping[str, Network], ranks: Sequence[int]) -> dict[tuple[str, int], str]:
    reasons: dict[tuple[str, int], str] = {}
    for (name, network), num_ranks in product(networks.items(), ranks):
        try:
            network.require_priced(num_ranks)
        except ValueError as error:
            reasons[name, num_ranks] = str(error)
            if all((name, count) in reasons for count in ranks):
                raise
    return reasons


def _if_small(make: Algorithm, num_ranks: int, max_transfers: float) -> Schedule | str:
    num_transfers = estimated_transfers(make, num_ranks)
    if num_transfers <= max_transfers:
        schedule = make(num_ranks)
        num_transfers = schedule.num_transfers
        if num_transfers <= max_transfers:
            return schedule
    return f"{format_count(num_transfers)} transfers, above {format_count(max_transfers)}"
