"""`synthesize`: the fastest schedule of a collective on a network that is found in some time."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count as count_from
from itertools import islice, product

import numpy as np

from ringsim.analysis import Links, NetworkBound, bound_of, candidates
from ringsim.network import NONE, AnyNetwork, memory_of
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule, require_few_transfers, verify
from ringsim.simulation import lists_more_than, predict_time
from ringsim.synthesis.islands import is_connected, islands_of
from ringsim.synthesis.matching import NotConnectedError
from ringsim.synthesis.overlay import Overlay, overlays
from ringsim.synthesis.plans import Plan, Problem, build_plan

NAME = "synthesized"
DEFAULT_SECONDS = 10.0
CHUNKS_PER_RANK = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CHUNKS_OF_ROOT = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WAVES = (4, 8, 16, 32)
MAX_OVERLAYS = 64
FEW_TRANSFERS = 2**12  # of what is tried with each overlay
MAX_TRANSFERS = 2**16  # of what is tried, unless fewest chunks make more
MAX_NAMED_TRANSFERS = 2**19  # of named algorithms, of which each transfer has to be looked at
NUM_KEPT = 3  # overlays that are looked into
SAME = 1e-6  # times closer than this fraction are equal
GOOD_ENOUGH = 1.001  # times the bound, at which a search ends


@dataclass(frozen=True, slots=True)
class NamedTime:
    """A built-in algorithm and its seconds; None, and the reason, where it was not simulated."""

    algorithm: str
    time_s: float | None
    skipped: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Synthesis:
    """The result of a search.

    schedule: the fastest one, proved; `is_named` if that is a built-in algorithm, as none found was faster.
    found_s: the seconds of the fastest one that was found; infinite if the time was up before.
    bound: None where none is known. named: by growing time. num_tried: schedules that were simulated.
    """

    schedule: Schedule
    time_s: float
    is_named: bool
    found_s: float
    bound: NetworkBound | None
    named: tuple[NamedTime, ...]
    num_tried: int


@dataclass(slots=True)
class SearchState:
    """How far a search is, for whoever shows it. bound_s: 0 where none is known."""

    phase: str
    num_tried: int = 0
    best_s: float = np.inf
    bound_s: float = 0.0


OnState = Callable[[SearchState], object]


def synthesize(
    collective: Collective,
    network: AnyNetwork,
    num_ranks: int,
    size_bytes: int,
    *,
    chunks_per_rank: int | None = None,
    seconds: float = DEFAULT_SECONDS,
    seed: int = 0,
    on_state: OnState = lambda _: None,
) -> Synthesis:
    """Return the fastest schedule that was found, or that of the fastest built-in algorithm, whichever is faster.

    chunks_per_rank: in how many chunks a rank's share goes (of a broadcast or reduce: all of the data); without it
    several numbers are tried.
    seconds: for which the search goes on; at least one schedule is found. A KeyboardInterrupt ends it as well, once
    there is something.

    Raises ValueError for less than two ranks, a network that does not connect all of them, a size of 0, and whatever
    the network refuses.

        >>> from ringsim import Collective, load_network
        >>> from ringsim.synthesis import synthesize
        >>> network = load_network("docs/networks/ring-of-six.toml")
        >>> found = synthesize(Collective.ALL_GATHER, network, 6, 2**26, seconds=1)
        >>> found.time_s < 1.01 * found.bound.time_s
        True
    """
    return _Search(collective, network, num_ranks, size_bytes, seconds, on_state).run(chunks_per_rank, seed)


def usable_links(network: AnyNetwork, num_ranks: int) -> Links:
    """Return the links that do not fail. Raises ValueError unless they connect all ranks."""
    topology = network.topology(num_ranks)
    links = Links.of(topology)
    fails = np.append(np.isfinite(topology.resources.fails_at_s), False)[links.resource]
    links = links.rows(~((links.resource != NONE) & fails).any(axis=1)).without_detours()
    if not is_connected(links):
        raise ValueError(f"{network.place}: it does not connect all of the {num_ranks} ranks, as some links fail")
    return links


class _Search:
    def __init__(
        self,
        collective: Collective,
        network: AnyNetwork,
        num_ranks: int,
        size_bytes: int,
        seconds: float,
        on_state: OnState,
    ) -> None:
        if num_ranks < 2:
            raise ValueError(f"num_ranks {num_ranks}: must be at least 2, since one alone sends nothing")
        if size_bytes < 1:
            raise ValueError(f"size {size_bytes}: must be at least 1 byte")
        if not seconds > 0:
            raise ValueError(f"seconds {seconds:g}: must be greater than 0, since a search takes time")
        if memory_of(network):
            raise ValueError(f"{network.place}: ranks that share memory send nothing over links")
        self._ends_at = time.monotonic() + seconds
        self._network, self._on_state = network, on_state
        links = usable_links(network, num_ranks)
        self._bound = bound_of(collective, network, num_ranks, size_bytes)
        least_s = self._bound.time_s if self._bound else 0.0
        self._problem = Problem(collective, size_bytes, links, islands_of(links), max(least_s, 1e-12))
        self._state = SearchState("searching", bound_s=least_s)
        self._tried: list[tuple[float, Plan]] = []
        self._best: tuple[float, Schedule] | None = None
        self._s_per_transfer = 0.0

    def run(self, chunks_per_rank: int | None, seed: int) -> Synthesis:
        try:
            for plan in self._plans(chunks_per_rank, seed):
                self._try(plan)
        except KeyboardInterrupt:
            if self._best is None:
                raise
        assert self._best is not None
        self._state.phase = "proving"
        self._on_state(self._state)
        verify(self._best[1])
        named = sorted(self._named(), key=lambda one: np.inf if one.time_s is None else one.time_s)
        found_s, schedule = self._best
        best = named[0] if named and named[0].time_s is not None else None
        if best is None or best.time_s is None or best.time_s > found_s:
            return Synthesis(schedule, found_s, False, found_s, self._bound, tuple(named), self._state.num_tried)
        schedule = self._build(best.algorithm)
        return Synthesis(schedule, best.time_s, True, found_s, self._bound, tuple(named), self._state.num_tried)

    def _plans(self, chunks_per_rank: int | None, seed: int) -> Iterator[Plan]:
        """Yield plans, of which the later ones depend on the times of the earlier ones."""
        counts = self._counts(chunks_per_rank)
        for overlay in islice(overlays(self._problem.links, self._problem.islands), MAX_OVERLAYS):
            few = [count for count in counts if self._num_transfers(overlay, count) <= FEW_TRANSFERS]
            yield Plan(overlay, few[-1] if few else counts[0], seed=seed)
        best = [plan.overlay for _, plan in sorted(self._tried, key=lambda tried: tried[0])[:NUM_KEPT]]
        for overlay in best:
            yield from self._refined(overlay, counts, seed)
        for restart in count_from(1):
            if self._is_over():
                return
            for _, plan in sorted(self._tried, key=lambda tried: tried[0])[:NUM_KEPT]:
                yield plan.with_seed(seed + restart)

    def _refined(self, overlay: Overlay, counts: list[int], seed: int) -> Iterator[Plan]:
        """Yield plans with other numbers of chunks, and those whose halves overlap."""
        for count in counts:
            yield Plan(overlay, count, seed=seed)
        if self._problem.collective is Collective.ALL_REDUCE:
            for is_balanced, num_waves, count in product((False, True), WAVES, counts):
                yield Plan(overlay, count, num_waves, is_balanced, seed)

    def _counts(self, chunks_per_rank: int | None) -> list[int]:
        """Return the numbers of chunks of a rank that are tried."""
        if chunks_per_rank is not None:
            return [chunks_per_rank]
        is_rooted = self._problem.collective in (Collective.BROADCAST, Collective.REDUCE)
        most = MAX_TRANSFERS // (self._problem.num_ranks * (1 if is_rooted else self._problem.num_ranks))
        counts = CHUNKS_OF_ROOT if is_rooted else CHUNKS_PER_RANK
        return [count for count in counts if count <= max(most, 1)]

    def _num_transfers(self, overlay: Overlay, count: int) -> int:
        return self._problem.num_transfers(Plan(overlay, count))

    def _is_over(self) -> bool:
        """Whether the time is up, or nothing can be much better."""
        if self._best is None:
            return False
        return time.monotonic() >= self._ends_at or self._best[0] <= GOOD_ENOUGH * self._state.bound_s

    def _try(self, plan: Plan) -> None:
        """Simulate what comes of a plan, unless it would take too long or is known."""
        num_transfers = self._problem.num_transfers(plan)
        left_s = self._ends_at - time.monotonic()
        if self._best is not None:
            is_large = num_transfers > MAX_TRANSFERS or num_transfers * self._s_per_transfer > left_s
            if is_large or self._is_over():
                return
        began = time.monotonic()
        try:
            schedule = build_plan(self._problem, plan, NAME)
        except NotConnectedError:
            return
        time_s = predict_time(schedule, self._network, self._problem.size_bytes)
        self._s_per_transfer = (time.monotonic() - began) / max(num_transfers, 1)
        self._tried.append((time_s, plan))
        if self._best is None or time_s < self._best[0] * (1 - SAME):
            self._best = time_s, schedule
        self._state.num_tried += 1
        self._state.best_s = self._best[0]
        self._on_state(self._state)

    def _named(self) -> Iterator[NamedTime]:
        """Yield the times of the built-in algorithms, until a KeyboardInterrupt."""
        names = candidates(self._problem.collective, [self._network])
        is_ended = False
        for name in names:
            self._state.phase = f"simulating {name}"
            self._on_state(self._state)
            try:
                yield NamedTime(name, None, "interrupted") if is_ended else self._named_time(name)
            except KeyboardInterrupt:
                is_ended = True
                yield NamedTime(name, None, "interrupted")

    def _named_time(self, name: str) -> NamedTime:
        size_bytes = self._problem.size_bytes
        try:
            schedule = self._build(name)
        except ValueError as error:
            return NamedTime(name, None, str(error))
        if lists_more_than(MAX_NAMED_TRANSFERS, schedule, self._network, size_bytes):
            return NamedTime(name, None, f"more than {MAX_NAMED_TRANSFERS:,} transfers")
        return NamedTime(name, predict_time(schedule, self._network, size_bytes))

    def _build(self, name: str) -> Schedule:
        make = partial(build, self._problem.collective, name, size_bytes=self._problem.size_bytes)
        require_few_transfers(make, self._problem.num_ranks)
        return make(self._problem.num_ranks)
