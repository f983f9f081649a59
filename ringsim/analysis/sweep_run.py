"""`SweepPlan`, what a sweep is to simulate; `SweepRun`, what of it is simulated so far; and `run_sweep`."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby, product
from typing import NamedTuple, Self

from ringsim.analysis.candidates import LIBRARY, PLAIN, Timing, why_not
from ringsim.analysis.sweep import Place, PlannedCells, Sweep, SweepCell
from ringsim.files import finite_or_none
from ringsim.measurements import provenance
from ringsim.network import AnyNetwork
from ringsim.registry import Algorithm, build, file_hash, size_variant
from ringsim.schedule import Collective, Schedule, estimated_transfers, format_count
from ringsim.workers import WorkerError, Workers

MAX_TRANSFERS = 10**7  # of a schedule; one that is listed takes about 1 GB then

TASKS_PER_WORKER = 16  # at least, if there are so many cells, so that all workers end at about the same time
RANKS_PER_TASK = 4096  # of all cells of a task together, at most: cells of few ranks take milliseconds


@dataclass(frozen=True, slots=True, eq=False)
class SweepPlan:
    """All combinations of algorithms, numbers of ranks, networks and sizes. timing: how the others are timed."""

    collective: Collective
    networks: Mapping[str, AnyNetwork]
    cells: PlannedCells
    timing: Timing = PLAIN

    @classmethod
    def of(
        cls,
        collective: Collective,
        algorithms: Sequence[str],
        ranks: Collection[int],
        sizes_bytes: Collection[int],
        networks: Mapping[str, AnyNetwork],
        max_transfers: float = MAX_TRANSFERS,
        timing: Timing = PLAIN,
    ) -> Self:
        """Return the plan with each value once, numbers from small to large.

        Raises ValueError if there is nothing to do, a size is below 1 or a number of ranks below 2.
        """
        if not (algorithms and ranks and sizes_bytes and networks):
            raise ValueError("a sweep needs at least one algorithm, number of ranks, size and network")
        if min(sizes_bytes) < 1:
            raise ValueError(f"size {min(sizes_bytes)}: a sweep needs sizes of at least 1 byte")
        if min(ranks) < 2:
            raise ValueError(f"num_ranks {min(ranks)}: a sweep needs at least 2 ranks, since one alone takes no time")
        names = tuple(dict.fromkeys(algorithms))
        hashes = {name: sha256 for name in names if (sha256 := file_hash(collective, name))}
        numbers = tuple(sorted(set(ranks))), tuple(sorted(set(sizes_bytes)))
        cells = PlannedCells(names, *numbers, finite_or_none(max_transfers), hashes, timing.name)
        return cls(collective, networks, cells, timing)

    @classmethod
    def resumed(
        cls,
        planned: PlannedCells,
        collective: Collective,
        networks: Mapping[str, AnyNetwork],
        timing: Timing = PLAIN,
    ) -> Self:
        """Return the plan of a file. Raises ValueError, in one line, for an algorithm that has changed since."""
        if planned.timing != timing.name and any(not why_not(network, LIBRARY) for network in networks.values()):
            raise ValueError(
                "its times do not include NCCL's protocols, since an older version wrote them: run the sweep again"
            )
        limit = math.inf if planned.max_transfers is None else planned.max_transfers
        plan = cls.of(collective, planned.algorithms, planned.ranks, planned.sizes_bytes, networks, limit, timing)
        for algorithm in plan.cells.algorithms:
            if plan.cells.file_hashes.get(algorithm, "") != planned.file_hashes.get(algorithm, ""):
                raise ValueError(
                    f"algorithm {algorithm!r}: its file has changed since the sweep began: run the sweep again"
                )
        return plan

    def places(self) -> list[Place]:
        """Return the places of all cells, in the order in which the file has them."""
        cells = self.cells
        return [Place(*place) for place in product(cells.algorithms, cells.ranks, self.networks, cells.sizes_bytes)]

    @property
    def max_transfers(self) -> float:
        """The most transfers of a schedule that is simulated."""
        return math.inf if self.cells.max_transfers is None else self.cells.max_transfers


def run_sweep(  # noqa: PLR0913  a sweep has so many axes
    collective: Collective,
    algorithms: Sequence[str],
    ranks: Sequence[int],
    sizes_bytes: Sequence[int],
    networks: Mapping[str, AnyNetwork],
    on_progress: Callable[[int], object] = lambda _: None,
    *,
    max_transfers: float = MAX_TRANSFERS,
    workers: Workers | None = None,
) -> Sweep:
    """Simulate all combinations; a schedule is built once for all sizes that share it, and for all networks.

    on_progress: is told how many cells have been done since it was last told.
    max_transfers: a schedule that has more is skipped, unbuilt as far as that can be estimated.
    workers: who simulates; without them this process. The result is the same to the last bit.

    Raises ValueError if there is nothing to do, a size is below 1 or a number of ranks below 2, or an algorithm can be
    built, or a network has room, for no number of ranks.

        >>> from ringsim import Collective, Network, run_sweep
        >>> networks = {"mine": Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9)}
        >>> sweep = run_sweep(Collective.ALL_REDUCE, ["ring", "recursive_doubling"], [8], [2**10, 2**26], networks)
        >>> [winner.cell.algorithm for winner in sweep.winners().values()]
        ['recursive_doubling', 'ring']
    """
    run = SweepRun(SweepPlan.of(collective, algorithms, ranks, sizes_bytes, networks, max_transfers))
    run.finish(workers or Workers(), on_progress)
    return run.sweep()


class SweepRun:
    """A plan, and its cells as far as they have been simulated: at first `cells`, of a sweep that was interrupted.

    Raises ValueError if a network has room for none of the numbers of ranks, and for cells that are not planned.
    """

    def __init__(self, plan: SweepPlan, cells: Iterable[SweepCell] = ()) -> None:
        self._plan = plan
        self._places = plan.places()
        self._without_room = _without_room(plan.networks, plan.cells.ranks)
        self._cells = {cell.place: cell for cell in cells}
        for place in self._cells.keys() - set(self._places):
            raise ValueError(f"a cell of {place.algorithm} on {place.num_ranks} ranks: is not planned")
        self._refused: dict[str, dict[int, str]] = {}

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The algorithms of the plan."""
        return self._plan.cells.algorithms

    @property
    def num_done(self) -> int:
        """The number of cells that are simulated."""
        return len(self._cells)

    @property
    def num_cells(self) -> int:
        """The number of cells of the plan."""
        return len(self._places)

    def finish(self, workers: Workers, on_progress: Callable[[int], object]) -> None:
        """Simulate what is missing.

        Raises ValueError if an algorithm can be built for no number of ranks, and if the library's choice is all that
        is asked for and known for no cell.

        What raises in between, KeyboardInterrupt included, leaves the cells that have been simulated.
        """
        tasks = self._tasks(workers.count)
        try:
            for place, done in workers.run(simulate_task, tasks):
                self._cells |= dict(zip(tasks[place].places, done.cells, strict=True))
                on_progress(len(done.cells))
                if done.refusal:
                    self._require_another(tasks[place], done.refusal)
        finally:
            _build_sizes.cache_clear()
        if self.algorithms == (LIBRARY,) and all(cell.num_steps is None for cell in self._cells.values()):
            raise ValueError(f"no cell of the sweep can be simulated: {self._cells[self._places[0]].skipped}")

    def _require_another(self, task: "SweepTask", refusal: str) -> None:
        """Raise ValueError if an algorithm has refused all numbers of ranks; why it did so for the most."""
        refused = self._refused.setdefault(task.algorithm, {})
        refused[task.num_ranks] = refusal
        if len(refused) == len(self._plan.cells.ranks):
            raise ValueError(refused[max(refused)])

    def _tasks(self, num_workers: int) -> list["SweepTask"]:
        """Cell by cell in the order of the plan; for several workers, in larger parts, and what takes long first."""
        missing = [place for place in self._places if place not in self._cells]
        if num_workers > 1:
            missing.sort(key=lambda place: -place.num_ranks)
        tasks = []
        for (algorithm, num_ranks), group in groupby(missing, key=lambda place: place[:2]):
            places = list(group)
            size = min(RANKS_PER_TASK // num_ranks, len(missing) // (TASKS_PER_WORKER * num_workers))
            size = max(size, 1) if num_workers > 1 else 1
            tasks += [
                SweepTask(self._plan, algorithm, num_ranks, tuple(places[first : first + size]), self._without_room)
                for first in range(0, len(places), size)
            ]
        return tasks

    def sweep(self) -> Sweep:
        """Return the cells that there are, in the order of the plan; with the plan, if some are missing."""
        cells = tuple(self._cells[place] for place in self._places if place in self._cells)
        networks = {name: dict(network.as_dict()) for name, network in self._plan.networks.items()}
        planned = None if self.num_done == self.num_cells else self._plan.cells
        return Sweep(cells, networks, provenance(), planned)


@dataclass(frozen=True, slots=True)
class SweepTask:
    """Some cells of one algorithm on one number of ranks, for a worker."""

    plan: SweepPlan
    algorithm: str
    num_ranks: int
    places: tuple[Place, ...]
    without_room: Mapping[tuple[str, int], str]


class SweepResult(NamedTuple):
    """The cells of a task; refusal: why the algorithm cannot be built for its number of ranks."""

    cells: list[SweepCell]
    refusal: str


def simulate_task(task: SweepTask) -> SweepResult:
    """Simulate the cells of a task, on a worker.

    Raises WorkerError if the file of a user's own algorithm is another than the plan names.
    """
    plan = task.plan
    if task.algorithm == LIBRARY:
        return SweepResult([_simulate_library(task, place) for place in task.places], "")
    by_size, refusal = _build_sizes(
        plan.collective,
        task.algorithm,
        task.num_ranks,
        plan.cells.sizes_bytes,
        plan.max_transfers,
        plan.cells.file_hashes.get(task.algorithm, ""),
    )
    return SweepResult([_simulate(task, place, by_size[place.size_bytes]) for place in task.places], refusal)


def _simulate(task: SweepTask, place: Place, built: "_Built") -> SweepCell:
    algorithm, num_ranks, name, size_bytes = place
    network = task.plan.networks[name]
    skipped = built.skipped or task.without_room.get((name, num_ranks), "")
    # One that no network of the sweep has was asked for by name, and is simulated, as on a single network.
    if (reason := why_not(network, algorithm)) and not all(why_not(n, algorithm) for n in task.plan.networks.values()):
        skipped = skipped or f"{name} {reason}"
    time_s = task.plan.timing.time_s(built.schedule, network, size_bytes) if built.schedule and not skipped else None
    return _cell(task.plan, place, built.num_steps, built.num_transfers, time_s, skipped)


def _simulate_library(task: SweepTask, place: Place) -> SweepCell:
    """Simulate the algorithm that the library of the network takes."""
    plan, (_, num_ranks, name, size_bytes) = task.plan, place
    try:
        if plan.timing.take is None:
            raise ValueError(f"{LIBRARY} is timed only by ringsim sweep")
        if skipped := task.without_room.get((name, num_ranks)):
            raise ValueError(skipped)
        schedule, taken, time_s = plan.timing.take(
            plan.networks[name], plan.collective, num_ranks, size_bytes, plan.max_transfers
        )
    except ValueError as error:
        return _cell(plan, place, None, None, None, str(error))
    return _cell(plan, place, schedule.num_steps, schedule.num_transfers, time_s, "", taken)


def _cell(
    plan: SweepPlan,
    place: Place,
    num_steps: int | None,
    num_transfers: int | None,
    time_s: float | None,
    skipped: str,
    taken: str = "",
) -> SweepCell:
    algorithm, num_ranks, network, size_bytes = place
    if time_s == math.inf:
        time_s, skipped = None, f"never finishes on {network} with {size_bytes:,} bytes, as something fails"
    where = (plan.collective, network, algorithm, num_ranks, size_bytes)
    return SweepCell(*where, num_steps, num_transfers, time_s, skipped, taken)


def _without_room(networks: Mapping[str, AnyNetwork], ranks: Sequence[int]) -> dict[tuple[str, int], str]:
    """Return why a network cannot have a number of ranks. Raises ValueError if it can have none of these numbers."""
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


@lru_cache(maxsize=1)  # tasks of one schedule follow one another
def _build_sizes(
    collective: Collective,
    algorithm: str,
    num_ranks: int,
    sizes_bytes: Sequence[int],
    max_transfers: float,
    expected_hash: str,
) -> tuple[dict[int, _Built], str]:
    """Return the schedule for each size, and why there is none for any."""
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
        return dict.fromkeys(sizes_bytes, _Built(skipped=" ".join(str(error).split()))), str(error)
    return by_size, ""


def _build(make: Algorithm, num_ranks: int, max_transfers: float) -> _Built:
    estimate = estimated_transfers(make, num_ranks)
    schedule = make(num_ranks) if estimate <= max_transfers else None
    num_transfers = estimate if schedule is None else schedule.num_transfers
    if schedule is None or num_transfers > max_transfers:
        return _Built(skipped=f"{format_count(num_transfers)} transfers, above {format_count(max_transfers)}")
    return _Built(schedule, schedule.num_steps, num_transfers)
