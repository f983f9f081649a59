"""`run_sweep`: simulates all combinations of algorithms, numbers of ranks, networks and sizes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product

from ringsim.analysis.sweep import Sweep, SweepCell
from ringsim.libraries import LIBRARIES, LIBRARY, MESSAGES, Call, library_of, why_not
from ringsim.measurements import provenance
from ringsim.network import Network
from ringsim.registry import Algorithm, build, size_variant
from ringsim.schedule import Collective, Schedule, estimated_transfers, format_count
from ringsim.workers import Workers

MAX_TRANSFERS = 10**7  # of a schedule; one that is listed takes about 1 GB then


def run_sweep(  # noqa: PLR0913  a sweep has so many axes
    collective: Collective,
    algorithms: Sequence[str],
    ranks: Sequence[int],
    sizes_bytes: Sequence[int],
    networks: Mapping[str, Network],
    on_progress: Callable[[int], object] = lambda _: None,
    *,
    max_transfers: float = MAX_TRANSFERS,
    as_library: bool = False,
    workers: Workers | None = None,
) -> Sweep:
    """Simulate all combinations; a schedule is built once for all sizes that share it, and for all networks.

    on_progress: is told how many cells have been done since it was last told.
    max_transfers: a schedule that has more is skipped, unbuilt as far as that can be estimated.
    as_library: whether schedules are timed as the library sends them that a network describes, and LIBRARY, what it
    chooses, is an algorithm; otherwise by `predict_time`.
    workers: who simulates; without them this process. The result is the same to the last bit.

    Raises ValueError if there is nothing to do, a size is below 1 or a number of ranks below 2, an algorithm can be
    built, or a network has room, for no number of ranks, or the library's choice is all that is asked for and known
    for no cell.

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
    if workers.count > 1:  # what takes long comes first, so that all end at about the same time
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
    """Simulates an algorithm on a number of ranks, on all networks and for all sizes, also on another host.

    as_library: as of `run_sweep`. without_room: why a network cannot have a number of ranks.
    """

    collective: Collective
    sizes_bytes: tuple[int, ...]
    networks: Mapping[str, Network]
    max_transfers: float
    as_library: bool
    without_room: Mapping[tuple[str, int], str]

    def __call__(self, group: tuple[str, int]) -> tuple[list[SweepCell], str]:
        """Return the cells, and why the algorithm cannot be built for this number of ranks; empty if it can."""
        algorithm, num_ranks = group
        built: dict[int, Schedule | str] = {}
        refusal = ""
        if algorithm != LIBRARY:
            try:
                built = self._built(algorithm, num_ranks)
            except ValueError as error:
                refusal = str(error)
                built = dict.fromkeys(self.sizes_bytes, " ".join(refusal.split()))
        return list(self._cells(algorithm, num_ranks, built)), refusal

    def _cells(self, algorithm: str, num_ranks: int, built: Mapping[int, Schedule | str]) -> Iterator[SweepCell]:
        for network, size_bytes in product(self.networks, self.sizes_bytes):
            chosen = built.get(size_bytes, "")
            skipped, schedule = (chosen, None) if isinstance(chosen, str) else ("", chosen)
            skipped = skipped or self.without_room.get((network, num_ranks), "") or self._why_not(network, algorithm)
            taken, time_s = "", None
            if not skipped and algorithm == LIBRARY:
                schedule, taken, time_s, skipped = self._taken(network, num_ranks, size_bytes)
            elif not skipped and schedule:
                library = library_of(self.networks[network]) if self.as_library else MESSAGES
                time_s = library.time_s(schedule, self.networks[network], size_bytes)
            if time_s == math.inf:
                time_s, skipped = None, f"never finishes on {network} with {size_bytes:,} bytes, as something fails"
            num_steps, num_transfers = (schedule.num_steps, schedule.num_transfers) if schedule else (None, None)
            yield SweepCell(
                self.collective, network, algorithm, num_ranks, size_bytes, num_steps, num_transfers, time_s, skipped,
                taken,
            )  # fmt: skip

    def _built(self, algorithm: str, num_ranks: int) -> dict[int, Schedule | str]:
        """Return for each size the schedule, which sizes may share, or why it is skipped. Raises ValueError."""
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
        """Return why a network does not have an algorithm.

        One that no network of the sweep has was asked for by name, and is simulated, as on a single network.
        """
        if algorithm == LIBRARY:
            return "" if self.as_library else f"{LIBRARY} is timed only by ringsim sweep"
        reasons = {name: why_not(other, algorithm) for name, other in self.networks.items()}
        return "" if all(reasons.values()) or not reasons[network] else f"{network} {reasons[network]}"

    def _taken(self, network: str, num_ranks: int, size_bytes: int) -> tuple[Schedule | None, str, float | None, str]:
        """Return what the library of the network takes, its name and its time; or why that is not known."""
        on = self.networks[network]
        call = Call.on(on, self.collective, num_ranks, size_bytes)
        try:
            plan = LIBRARIES[LIBRARY].choose(on, call, self.max_transfers)
            return plan.schedule, f"{plan.schedule.algorithm} {plan.protocol.name}", plan.time_s(), ""
        except ValueError as error:
            return None, "", None, str(error)


def _without_room(networks: Mapping[str, Network], ranks: Sequence[int]) -> dict[tuple[str, int], str]:
    """Return why a network cannot have a number of ranks. Raises ValueError if it can have none of these numbers."""
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
    """Return the schedule, or why it is skipped, unbuilt as far as that can be estimated."""
    num_transfers = estimated_transfers(make, num_ranks)
    if num_transfers <= max_transfers:
        schedule = make(num_ranks)
        num_transfers = schedule.num_transfers
        if num_transfers <= max_transfers:
            return schedule
    return f"{format_count(num_transfers)} transfers, above {format_count(max_transfers)}"
