"""`run_sweep`: simulates all combinations of algorithms, numbers of ranks, networks and sizes."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

from ringsim.analysis.candidates import LIBRARY, PLAIN, Timing, why_not
from ringsim.analysis.sweep import Place, Sweep, SweepCell
from ringsim.measurements import provenance
from ringsim.network import AnyNetwork, require_priced
from ringsim.registry import Algorithm, build, file_hash, size_variant
from ringsim.schedule import Collective, Schedule, estimated_transfers, format_count
from ringsim.workers import WorkerError, Workers

MAX_TRANSFERS = 10**7  # of a schedule; one that is listed takes about 1 GB then


def run_sweep(  # noqa: PLR0913  a sweep has so many axes
    collective: Collective,
    algorithms: Sequence[str],
    ranks: Sequence[int],
    sizes_bytes: Sequence[int],
    networks: Mapping[str, AnyNetwork],
    on_progress: Callable[[int], object] = lambda _: None,
    *,
    max_transfers: float = MAX_TRANSFERS,
    timing: Timing | None = None,
    workers: Workers | None = None,
) -> Sweep:
    """Simulate all combinations; a schedule is built once for all sizes that share it, and for all networks.

    on_progress: is told how many cells have been done since it was last told.
    max_transfers: a schedule that has more is skipped, unbuilt as far as that can be estimated.
    timing: how the schedules are timed; without it, by `predict_time`.
    workers: who simulates; without them this process. The result is the same to the last bit.

    Raises ValueError if there is nothing to do, a size is below 1 or a number of ranks below 2, an algorithm can be
    built, or a network has room, for no number of ranks, or the library's choice is all that is asked for and known
    for no cell.

        >>> from ringsim import Collective, Network, run_sweep
        >>> networks = {"mine": Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9)}
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
    hashes = {name: file_hash(collective, name) for name in algorithms}
    room = _without_room(networks, ranks)
    simulate = _CellSimulator(collective, sizes_bytes, networks, max_transfers, timing or PLAIN, hashes, room)
    places = [Place(*place) for place in product(hashes, ranks, networks, sizes_bytes)]
    cells = _simulate(simulate, places, workers or Workers(), on_progress)
    if [*hashes] == [LIBRARY] and all(cell.num_steps is None for cell in cells.values()):
        raise ValueError(f"no cell of the sweep can be simulated: {cells[places[0]].skipped}")
    facts = {name: dict(network.as_dict()) for name, network in networks.items()}
    return Sweep(tuple(cells[place] for place in places), facts, provenance())


def _simulate(
    simulate: "_CellSimulator", places: Sequence[Place], workers: Workers, on_progress: Callable[[int], object]
) -> dict[Place, SweepCell]:
    """Raise ValueError for an algorithm that refuses all numbers of ranks: why it refuses the largest."""
    cells = {}
    ranks = {place.num_ranks for place in places}
    refused: dict[str, dict[int, str]] = {place.algorithm: {} for place in places}
    if workers.count > 1:  # what takes long comes first, so that all end at about the same time
        places = sorted(places, key=lambda place: -place.num_ranks)
    try:
        with closing(workers.run(simulate, places)) as results:
            for cell, refusal in results:
                cells[cell.place] = cell
                on_progress(1)
                if refusal:
                    refused[cell.algorithm][cell.num_ranks] = refusal
                if refused[cell.algorithm].keys() == ranks:
                    raise ValueError(refused[cell.algorithm][max(ranks)])
    finally:
        _build_sizes.cache_clear()
    return cells


@dataclass(frozen=True, slots=True)
class _CellSimulator:
    """Simulates any cell of one sweep, also on another host.

    timing: how the others are timed. file_hashes: of a user's own algorithms. without_room: why a network cannot have a
    number of ranks.
    """

    collective: Collective
    sizes_bytes: tuple[int, ...]
    networks: Mapping[str, AnyNetwork]
    max_transfers: float
    timing: Timing
    file_hashes: Mapping[str, str]
    without_room: Mapping[tuple[str, int], str]

    def __call__(self, place: Place) -> tuple[SweepCell, str]:
        """Return the cell, and why its algorithm cannot be built for its number of ranks; empty if it can.

        Raises WorkerError if the file of a user's own algorithm is another than where the sweep began.
        """
        built, time_s = (self._of_library if place.algorithm == LIBRARY else self._of_algorithm)(place)
        skipped = built.skipped
        if time_s == math.inf:
            skipped = f"never finishes on {place.network} with {place.size_bytes:,} bytes, as something fails"
        where = (self.collective, place.network, place.algorithm, place.num_ranks, place.size_bytes)
        counts = (built.num_steps, built.num_transfers)
        return SweepCell(*where, *counts, None if skipped else time_s, skipped, built.taken), built.refusal

    def _of_algorithm(self, place: Place) -> tuple["_Built", float | None]:
        name, num_ranks, network, size_bytes = place
        by_size = _build_sizes(
            self.collective, name, num_ranks, self.sizes_bytes, self.max_transfers, self.file_hashes[name]
        )
        built = by_size[size_bytes]
        skipped = built.skipped or self.without_room.get((network, num_ranks)) or self._why_not(network, name)
        if skipped or built.schedule is None:
            return built._replace(skipped=skipped), None
        return built, self.timing.time_s(built.schedule, self.networks[network], size_bytes)

    def _why_not(self, network: str, algorithm: str) -> str:
        """Return why a network does not have an algorithm.

        One that no network of the sweep has was asked for by name, and is simulated, as on a single network.
        """
        reasons = {name: why_not(other, algorithm) for name, other in self.networks.items()}
        return "" if all(reasons.values()) or not reasons[network] else f"{network} {reasons[network]}"

    def _of_library(self, place: Place) -> tuple["_Built", float | None]:
        """Simulate the algorithm that the library of the network takes."""
        _, num_ranks, network, size_bytes = place
        skipped = self.without_room.get((network, num_ranks))
        if skipped or self.timing.take is None:
            return _Built(skipped=skipped or f"{LIBRARY} is timed only by ringsim sweep"), None
        try:
            schedule, taken, time_s = self.timing.take(
                self.networks[network], self.collective, num_ranks, size_bytes, self.max_transfers
            )
        except ValueError as error:
            return _Built(skipped=str(error)), None
        return _Built(schedule, schedule.num_steps, schedule.num_transfers, taken=taken), time_s


def _without_room(networks: Mapping[str, AnyNetwork], ranks: Sequence[int]) -> dict[tuple[str, int], str]:
    """Return why a network cannot have a number of ranks. Raises ValueError if it can have none of these numbers."""
    reasons: dict[tuple[str, int], str] = {}
    for (name, network), num_ranks in product(networks.items(), ranks):
        try:
            require_priced(network, num_ranks)
        except ValueError as error:
            reasons[name, num_ranks] = str(error)
            if all((name, count) in reasons for count in ranks):
                raise
    return reasons


class _Built(NamedTuple):
    """A schedule, counted once for all sizes; or why there is none.

    taken: the name of a library's choice. refusal: why there is none for this number of ranks, whatever the size.
    """

    schedule: Schedule | None = None
    num_steps: int | None = None
    num_transfers: int | None = None
    skipped: str = ""
    taken: str = ""
    refusal: str = ""


@lru_cache(maxsize=1)  # tasks of one schedule follow one another
def _build_sizes(
    collective: Collective,
    algorithm: str,
    num_ranks: int,
    sizes_bytes: Sequence[int],
    max_transfers: float,
    expected_hash: str,
) -> dict[int, _Built]:
    """Return the schedule for each size."""
    if file_hash(collective, algorithm) != expected_hash:
        raise WorkerError(f"algorithm {algorithm!r}: its file has been replaced or changed since the sweep began")
    variants: dict[int, _Built] = {}
    by_size = {}
    try:
        for size_bytes in sizes_bytes:
            variant = size_variant(collective, algorithm, num_ranks, size_bytes)
            if variant not in variants:
                make = partial(build, collective, algorithm, size_bytes=size_bytes)
                variants[variant] = _build(make, num_ranks, max_transfers)
            by_size[size_bytes] = variants[variant]
    except ValueError as error:
        return dict.fromkeys(sizes_bytes, _Built(skipped=" ".join(str(error).split()), refusal=str(error)))
    return by_size


def _build(make: Algorithm, num_ranks: int, max_transfers: float) -> _Built:
    estimate = estimated_transfers(make, num_ranks)
    schedule = make(num_ranks) if estimate <= max_transfers else None
    num_transfers = estimate if schedule is None else schedule.num_transfers
    if schedule is None or num_transfers > max_transfers:
        return _Built(skipped=f"{format_count(num_transfers)} transfers, above {format_count(max_transfers)}")
    return _Built(schedule, schedule.num_steps, num_transfers)
