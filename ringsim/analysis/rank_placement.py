"""`RankPlacement`: which rank should take which place in a schedule on an uneven network, and what that gains.

A search in two parts. From several starts orders are improved by the estimate of `Congestion`, thousands of them;
then the best of these, and changes of them, are simulated, as many as the budget allows. It is a heuristic: only where
the budget allows for all orders there are (by default for up to 5 ranks) is the best one certain.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import numpy as np

from ringsim.analysis.congestion import Congestion
from ringsim.network import AnyNetwork, Ints
from ringsim.schedule import Schedule, permute_ranks
from ringsim.simulation import RULE, Runtime, predict_time
from ringsim.workers import Workers

MAX_SIMULATED_ORDERS = 120  # all there are of 5 ranks
MAX_SIMULATED_TRANSFERS = 60_000  # of all orders together: some seconds
MAX_IN_VAIN = 40  # orders simulated one after the other that were no faster than the best
NUM_LOOKED_AT = 4  # changes that are estimated for each that is simulated
MAX_ESTIMATED_ORDERS = 4000  # for each start
MAX_ESTIMATED_PAIRS = 1_000_000  # of all orders of one start together: about a second
NUM_RANDOM_STARTS = 3
SAME = 1e-9  # times closer than this fraction are equal: it is rounding that tells them apart

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """An order, as `permute_ranks` takes it: rank `order[i]` does what rank i does in the schedule.

    time_before_s: with all ranks in their own places; never less than `time_s`.
    evaluations: how many orders were simulated.
    """

    order: Ranks
    time_s: float
    time_before_s: float
    evaluations: int

    @property
    def gain(self) -> float:
        """How many times as fast; 1 where nothing was gained, or neither ever ends."""
        same = self.time_before_s == self.time_s
        return 1.0 if same else self.time_before_s / self.time_s if self.time_s else math.inf


def find_placement(  # noqa: PLR0913  a search has so many limits
    schedule: Schedule,
    network: AnyNetwork,
    size_bytes: int,
    *,
    seed: int = 0,
    budget: int | None = None,
    seconds: float = math.inf,
    runtime: Runtime | None = None,
    on_progress: Callable[[int], object] = lambda _: None,
    workers: Workers | None = None,
) -> RankPlacement:
    """Return a fast order of the ranks for this size; the same one for the same seed. The root keeps its place.

    budget: how many orders are simulated at most; `default_budget` without it.
    seconds: after which the search ends, with the best order so far, which then depends on the machine's speed.
    runtime: how ranks execute the schedule, as of `predict_time`; by the rule of execution without it.
    on_progress: is told how many have been simulated since it was last told.
    workers: who simulates; without them this process. The placement is the same.

    Raises ValueError for a budget less than 1, and what `simulate` and `permute_ranks` raise.

        >>> from ringsim import find_placement, load_network, ring_all_reduce
        >>> find_placement(ring_all_reduce(4), load_network("gbe"), 2**20).order
        (0, 1, 2, 3)
    """
    budget = default_budget(schedule) if budget is None else budget
    if budget < 1:
        raise ValueError(f"budget {budget}: must be at least 1, since the given order is simulated")
    time_s = partial(_permuted_s, schedule, network, size_bytes, runtime or RULE)
    search = _Search(time_s, budget, time.monotonic() + seconds, on_progress, workers or Workers())
    search.simulate([tuple(range(schedule.num_ranks))])
    first = int(schedule.collective.has_root)  # a root stays where it is
    if math.factorial(min(schedule.num_ranks - first, 20)) <= budget:
        search.simulate([(*range(first), *free) for free in permutations(range(first, schedule.num_ranks))])
    else:
        rng = np.random.default_rng(seed)
        congestion = Congestion(schedule, network.topology(schedule.num_ranks), schedule.chunk_bytes(size_bytes))
        search.simulate(list(_starts(congestion, schedule.num_ranks, first, rng, search.is_over)))
        search.climb(congestion, first, rng)
    return search.result()


def default_budget(schedule: Schedule) -> int:
    """As many orders as are simulated in some seconds, but at least two: as it is, and the best by estimate."""
    return max(2, min(MAX_SIMULATED_ORDERS, MAX_SIMULATED_TRANSFERS // max(schedule.num_transfers, 1)))


class _Search:
    """The orders simulated so far and their times; the first of them is that before."""

    def __init__(
        self,
        time_s: Callable[[Ranks], float],
        budget: int,
        ends_at: float,
        on_progress: Callable[[int], object],
        workers: Workers,
    ) -> None:
        self._time_s = time_s
        self._budget = budget
        self._ends_at = ends_at
        self._on_progress = on_progress
        self._workers = workers
        self._times_s: dict[Ranks, float] = {}
        self._times_ahead_s: dict[Ranks, float] = {}  # of orders whose turn has not come

    def is_over(self) -> bool:
        """Whether the budget or the time is spent; never before one order was simulated."""
        return bool(self._times_s) and (len(self._times_s) >= self._budget or time.monotonic() > self._ends_at)

    def simulate(self, orders: Sequence[Ranks]) -> None:
        """Simulate these, as far as the budget goes."""
        self._look_ahead(orders)
        for order in orders:
            self._simulate(order)

    def _simulate(self, order: Ranks) -> float | None:
        """Its time; None if the budget or the time is spent."""
        if order not in self._times_s:
            is_ahead = order in self._times_ahead_s and len(self._times_s) < self._budget
            if self.is_over() and not is_ahead:
                return None
            if order not in self._times_ahead_s:
                self._times_ahead_s[order] = self._time_s(order)
            self._times_s[order] = self._times_ahead_s.pop(order)
            self._on_progress(1)
        return self._times_s[order]

    def _look_ahead(self, orders: Iterable[Ranks]) -> None:
        """Have several workers simulate those that are not known, as far as the budget goes."""
        unknown = [order for order in dict.fromkeys(orders) if order not in self._times_s | self._times_ahead_s]
        unknown = unknown[: self._budget - len(self._times_s)]
        if self._workers.count == 1 or len(unknown) < 2:
            return
        # All at once, unless the time may be over in between.
        num_at_once = len(unknown) if math.isinf(self._ends_at) else self._workers.count
        for first in range(0, len(unknown), num_at_once):
            if self.is_over():
                return
            together = unknown[first : first + num_at_once]
            with closing(self._workers.run(self._time_s, together)) as results:
                self._times_ahead_s |= zip(together, results, strict=True)

    def climb(self, congestion: Congestion, first: int, rng: np.random.Generator) -> None:
        """Change the best order, and go on from each that is no slower."""
        at = np.array(self._best())
        at_s = best_s = self._times_s[self._best()]
        in_vain = 0
        for _ in range(10 * self._budget):  # an end, should there be no orders left that were not simulated
            changed = _best_change(at, congestion, first, rng)
            time_s = self._simulate(tuple(changed.tolist()))
            if time_s is None or in_vain == MAX_IN_VAIN:
                return
            in_vain = in_vain + 1 if time_s >= best_s * (1 - SAME) else 0
            best_s = min(best_s, time_s)
            if time_s <= at_s:
                at, at_s = changed, time_s

    def result(self) -> RankPlacement:
        before_s = next(iter(self._times_s.values()))
        best = self._best()
        return RankPlacement(best, self._times_s[best], before_s, len(self._times_s))

    def _best(self) -> Ranks:
        """Return the first of the fastest: nothing is moved without a gain."""
        least = min(self._times_s.values())
        return next(order for order, time_s in self._times_s.items() if time_s <= least * (1 + SAME))


def _permuted_s(schedule: Schedule, network: AnyNetwork, size_bytes: int, runtime: Runtime, order: Ranks) -> float:
    return predict_time(permute_ranks(schedule, order), network, size_bytes, runtime=runtime)


def _best_change(at: Ints, congestion: Congestion, first: int, rng: np.random.Generator) -> Ints:
    """Of a few changes drawn at random, the best by estimate."""
    return min((_changed(at, first, rng) for _ in range(NUM_LOOKED_AT)), key=congestion.estimate_s)


def _starts(
    congestion: Congestion, num_ranks: int, first: int, rng: np.random.Generator, is_over: Callable[[], bool]
) -> Iterator[Ranks]:
    """Orders that look good, the best first, with places before `first` kept; is_over: no more are looked for."""
    if not len(congestion):
        return
    as_it_is = np.arange(num_ranks)
    near = _nearest_neighbours(congestion, num_ranks)
    random = [np.append(as_it_is[:first], rng.permutation(as_it_is[first:])) for _ in range(NUM_RANDOM_STARTS)]
    orders = [near, *(_improved(congestion, start, first, rng, is_over) for start in (near, as_it_is, *random))]
    orders.sort(key=congestion.estimate_s)
    yield from dict.fromkeys(tuple(order.tolist()) for order in orders)


def _nearest_neighbours(congestion: Congestion, num_ranks: int) -> Ints:
    """From rank 0 on, always the rank that is reached soonest from the last one; so hosts stay together."""
    order, left = [0], np.arange(1, num_ranks)
    while len(left):
        hops = congestion.hops(np.full(len(left), order[-1]), left)
        nearest = int(np.lexsort((hops.latency_s, hops.latency_s + congestion.mean_bytes * hops.s_per_byte))[0])
        order.append(int(left[nearest]))
        left = np.delete(left, nearest)
    return np.array(order)


def _improved(
    congestion: Congestion, order: Ints, first: int, rng: np.random.Generator, is_over: Callable[[], bool]
) -> Ints:
    """Change the order at random, as long as the estimate does not get worse."""
    estimate_s = congestion.estimate_s(order)
    for _ in range(min(MAX_ESTIMATED_ORDERS, MAX_ESTIMATED_PAIRS // len(congestion))):
        if is_over():
            break
        changed = _changed(order, first, rng)
        changed_s = congestion.estimate_s(changed)
        if changed_s <= estimate_s:
            order, estimate_s = changed, changed_s
    return order


def _changed(order: Ints, first: int, rng: np.random.Generator) -> Ints:
    """Two ranks exchanged, a run of ranks turned round, or a run moved elsewhere; places before `first` are kept."""
    begin, end = np.sort(rng.choice(np.arange(first, len(order)), 2, replace=False))
    changed = order.copy()
    match rng.integers(3):
        case 0:
            changed[[begin, end]] = order[[end, begin]]
        case 1:
            changed[begin : end + 1] = order[begin : end + 1][::-1]
        case _:
            middle = rng.integers(begin, end) + 1
            changed[begin : end + 1] = np.concatenate([order[middle : end + 1], order[begin:middle]])
    return changed
