"""`synthesize`: a search for the fastest schedule of a collective on a network."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, product

import numpy as np

from ringsim.analysis import BOUNDED, Links, NetworkBound, bound_of
from ringsim.limits import FORM_TRANSFERS, SEARCH_SECONDS, TRIED_TRANSFERS
from ringsim.network import Network
from ringsim.schedule import Bools, Collective, Schedule, verify
from ringsim.simulation import RULE, Runtime, predict_time, simulate
from ringsim.synthesis.built_in import BuiltInAlgorithms, NamedTime
from ringsim.synthesis.drafts import LEAST_S, Draft, Drafting, Problem, in_order_of
from ringsim.synthesis.matching import NotConnectedError, Overlay, is_connected, islands_of, overlays
from ringsim.units import ROUNDING

NAME = "synthesized"
CHUNKS_PER_RANK = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CHUNKS_OF_ROOT = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
MAX_OVERLAYS = 64
MAX_PER_PAIR = 16  # transfers of a tried schedule on many ranks; on few ranks `TRIED_TRANSFERS` in all
LEFT_FOR_BEST = 0.7  # of the time: reserved for the best overlays
LEFT_FOR_BALANCE = 0.7  # of the remaining time, for fitting the halves of an all_reduce to each other
NUM_KEPT = 3  # overlays that are examined, and drafts whose order is improved
ORDER_SHARE = 0.1  # of the time: limit for the simulation of such a draft
NUM_LOOKED_AT = 8  # drafts to simulate
MAX_RESTARTS = 1000
GOOD_ENOUGH = 1.001  # times the bound, at which a search ends


@dataclass(frozen=True, slots=True, eq=False)
class Synthesis:
    """The result of a search.

    schedule: the fastest, proved; `is_named` if it is built-in.
    found_schedule, found_s: the fastest found, proved, and its seconds. bound: None if unknown.
    named: built-in algorithms by time. num_tried: number of simulated schedules.
    """

    schedule: Schedule
    time_s: float
    is_named: bool
    found_schedule: Schedule
    found_s: float
    bound: NetworkBound | None
    named: tuple[NamedTime, ...]
    num_tried: int


@dataclass(slots=True)
class SearchState:
    """The progress of a search. bound_s: 0 if unknown."""

    phase: str
    num_tried: int = 0
    best_s: float = np.inf
    bound_s: float = 0.0


OnState = Callable[[SearchState], object]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The limits of a search, and the schedules that it tries.

    seconds: time limit, but at least one schedule is found; a running simulation is given up after twice that time.
    chunks_per_rank: of a rank's share (of a broadcast or reduce: of all the data); None: several numbers are tried.
    enough: multiple of the bound at which the search ends.
    Raises ValueError for no time, and for less than one chunk.
    """

    seconds: float = SEARCH_SECONDS
    chunks_per_rank: int | None = None
    seed: int = 0
    enough: float = GOOD_ENOUGH
    runtime: Runtime = RULE

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"seconds {self.seconds:g}: must be greater than 0, since a search takes time")
        if self.chunks_per_rank is not None and self.chunks_per_rank < 1:
            raise ValueError(f"chunks_per_rank {self.chunks_per_rank}: must be at least 1")


def synthesize(
    collective: Collective,
    network: Network,
    num_ranks: int,
    size_bytes: int,
    options: SearchOptions = SearchOptions(),
    *,
    on_state: OnState = lambda _: None,
) -> Synthesis:
    """Return the fastest schedule that was found, or the fastest built-in algorithm if it is faster.

    on_state: called with the progress. A KeyboardInterrupt ends the search once there is a schedule.
    Raises ValueError for less than two ranks, a network that does not connect them or on which nothing takes time, a
    size of 0, too many chunks, and the errors of the network.

        >>> from ringsim import Collective, load_network
        >>> from ringsim.synthesis import SearchOptions, synthesize
        >>> network = load_network("docs/networks/ring-of-six.toml")
        >>> found = synthesize(Collective.ALL_GATHER, network, 6, 2**26, SearchOptions(seconds=5))
        >>> found.time_s < 1.01 * found.bound.time_s
        True
    """
    return _SynthesisSearch(collective, network, num_ranks, size_bytes, options, on_state).run()


def usable_links(network: Network, num_ranks: int) -> Links:
    """Return the links that do not fail. Raises ValueError unless they connect all ranks."""
    topology = network.topology(num_ranks)
    links = Links.of(topology)
    fails = np.append(np.isfinite(topology.resources.fails_at_s), False)  # the last one is that of NONE
    on_way = topology.paths(links.src, links.dst).resource  # with those that do not limit, such as ranks that fail
    is_lost: Bools = np.asarray(fails[on_way].any(axis=1))
    links = links.rows(~is_lost).without_detours()
    if not is_connected(links):
        raise ValueError(f"{network.place}: it does not connect all of the {num_ranks} ranks, as links or ranks fail")
    return links


class _SynthesisSearch:
    def __init__(
        self,
        collective: Collective,
        network: Network,
        num_ranks: int,
        size_bytes: int,
        options: SearchOptions,
        on_state: OnState,
    ) -> None:
        if collective not in BOUNDED:
            known = ", ".join(one.value for one in BOUNDED)
            raise ValueError(f"collective {collective.value}: there is no search for it; must be one of {known}")
        if num_ranks < 2:
            raise ValueError(f"num_ranks {num_ranks}: must be at least 2, since one alone sends nothing")
        if size_bytes < 1:
            raise ValueError(f"size {size_bytes}: must be at least 1 byte")
        if options.runtime.shared_memory(network):
            raise ValueError(f"{network.place}: ranks that share memory send nothing over links")
        self._ends_at = time.monotonic() + options.seconds
        self._network, self._options, self._on_state = network, options, on_state
        links = usable_links(network, num_ranks)
        if not links.fixed_s.any() and not links.s_per_byte.any() and not links.alone_s_per_byte.any():
            raise ValueError(f"{network.place}: messages take no time on it, so no schedule is faster than others")
        self._bound = bound_of(collective, network, num_ranks, size_bytes)
        least_s = self._bound.time_s if self._bound else 0.0
        latency_s = self._bound.latency_s if self._bound else 0.0
        most = max(TRIED_TRANSFERS, MAX_PER_PAIR * num_ranks**2)
        self._problem = Problem(
            collective, size_bytes, links, islands_of(links), max(least_s, LEAST_S), latency_s, most,
            options.runtime.in_order,
        )  # fmt: skip
        self._require_few_chunks()
        self._state = SearchState("searching", bound_s=least_s)
        self._tried: list[tuple[float, Draft]] = []
        self._best: tuple[float, Schedule] | None = None
        self._s_per_transfer = 0.0

    def run(self) -> Synthesis:
        is_interrupted = False
        try:
            self._search(self._counts(), self._options.seed)
            self._improve_order()
        except KeyboardInterrupt:
            if self._best is None:
                raise
            is_interrupted = True
        if self._best is None:
            raise ValueError(f"{self._network.place}: no links were found that lead to all ranks")
        found_s, found_schedule = self._best
        is_interrupted |= self._prove(found_schedule)
        named = self._named(found_s, is_interrupted)
        schedule, time_s, problem = found_schedule, found_s, self._problem
        if is_named := bool(named) and named[0].time_s is not None and named[0].sorting_s <= found_s:
            schedule = named[0].schedule(problem.collective, problem.num_ranks, problem.size_bytes)
            time_s = named[0].sorting_s
            self._prove(schedule)
        return Synthesis(
            schedule, time_s, is_named, found_schedule, found_s, self._bound, tuple(named), self._state.num_tried
        )

    def _prove(self, schedule: Schedule) -> bool:
        try:
            self._say("proving")
            verify(schedule)
        except KeyboardInterrupt:
            verify(schedule)
            return True
        return False

    def _named(self, found_s: float, is_interrupted: bool) -> list[NamedTime]:
        problem, seconds, runtime = self._problem, self._options.seconds, self._options.runtime
        built_in = BuiltInAlgorithms(
            problem.collective, self._network, problem.num_ranks, problem.size_bytes, seconds, runtime, self._time_s,
            self._say,
        )  # fmt: skip
        named = built_in.unchanged(is_interrupted=is_interrupted)
        if is_interrupted or any(one.is_interrupted for one in named):
            return named
        return built_in.with_forms(named) if found_s > self._options.enough * problem.bound_s else named

    def _search(self, counts: list[int], seed: int) -> None:
        problem, begun_s = self._problem, self._left_s()
        few = [count for count in counts if problem.num_transfers(count) <= FORM_TRANSFERS]
        known: list[Draft] = []
        for overlay in islice(overlays(problem.links, problem.islands), MAX_OVERLAYS):
            if self._best and self._left_s() < LEFT_FOR_BEST * begun_s:
                break
            known += self._drafted(overlay, few[-1] if few else counts[0], seed, is_balanced=False)
            if self._best is None and known:  # so that there is something soon
                self._simulate([min(known, key=lambda draft: draft.num_transfers)])
        self._simulate(self._in_time(known)[:NUM_LOOKED_AT])
        promising = [draft for _, draft in self._best_tried()[:1]] + sorted(known, key=lambda draft: draft.order)
        kept = list(dict.fromkeys(draft.overlay for draft in promising))[:NUM_KEPT]
        known, begun_s = [], self._left_s()
        for count, overlay in product(counts, kept):
            if self._left_s() < LEFT_FOR_BALANCE * begun_s and problem.collective is Collective.ALL_REDUCE:
                break
            known += (made := self._drafted(overlay, count, seed, is_balanced=False))
            self._simulate([draft for draft in made if draft.num_waves == 1])
        for overlay, count in dict.fromkeys((draft.overlay, draft.chunks_per_rank) for draft in self._in_time(known)):
            self._simulate(self._drafted(overlay, count, seed))
        for restart in range(1, MAX_RESTARTS):
            for _, draft in self._best_tried()[:NUM_KEPT]:
                self._simulate(self._drafted(draft.overlay, draft.chunks_per_rank, seed + restart))
            if self._is_over():
                return

    def _improve_order(self) -> None:
        """Try the best drafts with their transfers sorted by their end under the rule of execution.

        A reversed plan sends as late as possible, for which a rank in order would wait.
        """
        for _, draft in reversed(self._best_tried()[:NUM_KEPT]):
            if draft.num_transfers * self._s_per_transfer > ORDER_SHARE * self._options.seconds:
                continue
            schedule = draft.schedule(NAME)
            timeline = simulate(schedule, self._network, self._problem.size_bytes)
            ordered = in_order_of(schedule, timeline.applied_s)
            time_s = self._time_s(ordered, np.inf)
            if self._best and time_s <= self._best[0] * (1 + ROUNDING):
                self._best = time_s, ordered
                self._state.best_s = time_s

    def _in_time(self, known: list[Draft]) -> list[Draft]:
        left_s = self._left_s()
        in_time = [draft for draft in known if draft.num_transfers * self._s_per_transfer <= left_s]
        return sorted(in_time, key=lambda draft: draft.order)

    def _best_tried(self) -> list[tuple[float, Draft]]:
        return sorted(self._tried, key=lambda tried: tried[0])

    def _drafted(self, overlay: Overlay, count: int, seed: int, *, is_balanced: bool = True) -> list[Draft]:
        num_transfers = self._problem.num_transfers(count)
        if self._best and (self._is_over() or num_transfers * self._s_per_transfer > self._left_s()):
            return []
        try:
            return Drafting(self._problem, overlay, count, seed).drafts(is_balanced=is_balanced)
        except NotConnectedError:
            return []

    def _simulate(self, promising: list[Draft]) -> None:
        for draft in sorted(promising, key=lambda known: known.order):
            takes_s = draft.num_transfers * self._s_per_transfer
            if self._best and self._is_over():
                return
            if self._best and (takes_s > self._left_s() or draft.estimate_s > self._best[0]):
                continue
            began = time.monotonic()
            schedule = draft.schedule(NAME)
            try:
                time_s = self._time_s(schedule, self._ends_at + self._options.seconds if self._best else np.inf)
            except TimeoutError:
                return
            self._s_per_transfer = (time.monotonic() - began) / max(draft.num_transfers, 1)
            self._tried.append((time_s, draft))
            if self._best is None or time_s < self._best[0] * (1 - ROUNDING):
                self._best = time_s, schedule
                self._state.best_s = time_s
            self._state.num_tried += 1
            self._on_state(self._state)

    def _counts(self) -> list[int]:
        if self._options.chunks_per_rank is not None:
            return [self._options.chunks_per_rank]
        problem = self._problem
        counts = CHUNKS_OF_ROOT if problem.collective.has_root else CHUNKS_PER_RANK
        return [count for count in counts if problem.num_transfers(count) <= problem.max_transfers] or [1]

    def _require_few_chunks(self) -> None:
        count, problem = self._options.chunks_per_rank or 1, self._problem
        num_transfers = problem.num_transfers(count)
        if count > 1 and num_transfers > problem.max_transfers:
            most = max(problem.max_transfers * count // num_transfers, 1)
            raise ValueError(
                f"chunks_per_rank {count}: must be at most {most} here, since a search for a schedule of "
                f"{num_transfers:,} transfers would take too long"
            )

    def _left_s(self) -> float:
        return self._ends_at - time.monotonic()

    def _is_over(self) -> bool:
        enough_s = self._options.enough * self._problem.bound_s
        return self._best is not None and (self._left_s() <= 0 or self._best[0] <= enough_s)

    def _say(self, phase: str) -> None:
        self._state.phase = phase
        self._on_state(self._state)

    def _time_s(self, schedule: Schedule, ends_at: float) -> float:
        """Return the simulated time. Raises TimeoutError if it is unknown at `ends_at` of `time.monotonic`."""

        def stop_late(_: int) -> None:
            if time.monotonic() > ends_at:
                raise TimeoutError

        runtime = self._options.runtime
        return predict_time(schedule, self._network, self._problem.size_bytes, runtime=runtime, on_progress=stop_late)
