"""`find_placement`: a fast assignment of ranks to the places of a schedule, on an uneven network.

A local search from the given order and from a chain of nearest ranks: some ranks change places, and an order that is no
slower is kept. If the budget covers all orders (by default up to 5 ranks), the result is optimal.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from ringsim.analysis.faults import fails_at_s, message_s
from ringsim.limits import PLACED_TRANSFERS
from ringsim.network import Floats, Network
from ringsim.schedule import Schedule, permute_ranks
from ringsim.simulation import RULE, Runtime, predict_time
from ringsim.units import ROUNDING

MAX_SIMULATED_ORDERS = 120  # all of 5 ranks
MAX_WITHOUT_GAIN = 40  # consecutive orders that were no faster than the best

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """An order of ranks for `permute_ranks`: rank `order[i]` takes the place of rank i in the schedule.

    time_before_s: of the given order; never less than `time_s`. evaluations: number of simulated orders.
    """

    evaluations: int
    order: Ranks
    time_before_s: float
    time_s: float

    @property
    def gain(self) -> float:
        """The speed-up over the given order; 1 if neither order ever finishes."""
        same = self.time_before_s == self.time_s
        return 1.0 if same else self.time_before_s / self.time_s if self.time_s else math.inf


def find_placement(  # noqa: PLR0913  a search has so many limits
    schedule: Schedule,
    network: Network,
    size_bytes: int,
    *,
    seed: int = 0,
    budget: int | None = None,
    seconds: float = math.inf,
    runtime: Runtime = RULE,
    on_progress: Callable[[int], object] = lambda _: None,
) -> RankPlacement:
    """Return a fast order of the ranks for this size, the same for the same seed. The root keeps its place.

    budget: maximum number of simulated orders; by default `default_budget`. seconds: time limit. on_progress: called
    with 1 after each simulation.
    Raises ValueError for a budget less than 1, and the errors of `simulate` and `permute_ranks`.

        >>> from ringsim import find_placement, load_network, ring_all_reduce
        >>> find_placement(ring_all_reduce(4), load_network("gbe"), 2**20).order
        (0, 1, 2, 3)
    """
    budget = default_budget(schedule) if budget is None else budget
    if budget < 1:
        raise ValueError(f"budget {budget}: must be at least 1, since the given order is simulated")
    ends_at = time.monotonic() + seconds
    times_s: dict[Ranks, float] = {}  # of equal times the first wins: no rank moves without a gain
    best = given = tuple(range(schedule.num_ranks))
    for order in _orders(schedule, network, size_bytes, times_s, budget, np.random.default_rng(seed)):
        times_s[order] = predict_time(permute_ranks(schedule, order), network, size_bytes, runtime=runtime)
        on_progress(1)
        best = order if times_s[order] < times_s[best] * (1 - ROUNDING) else best
        if len(times_s) >= budget or time.monotonic() > ends_at:
            break
    before_s, best_s = times_s[given], times_s[best]
    return RankPlacement(evaluations=len(times_s), order=best, time_before_s=before_s, time_s=best_s)


def default_budget(schedule: Schedule) -> int:
    """Return the number of orders that take some seconds, at least two."""
    return max(2, min(MAX_SIMULATED_ORDERS, PLACED_TRANSFERS // max(schedule.num_transfers, 1)))


def _orders(
    schedule: Schedule, network: Network, size_bytes: int, times_s: dict[Ranks, float], budget: int,
    rng: np.random.Generator,
) -> Iterator[Ranks]:  # fmt: skip
    """Yield distinct orders, the given first; the caller puts each time into `times_s`."""
    given = tuple(range(schedule.num_ranks))
    yield given
    first = int(schedule.collective.has_root)  # a root stays where it is
    if math.factorial(min(len(given) - first, 20)) <= budget:
        yield from ((*given[:first], *free) for free in permutations(given[first:]) if free != given[first:])
        return
    times = _message_times(network, schedule.num_ranks, size_bytes / schedule.num_chunks)
    if (nearest := _nearest_neighbours(times)) != given:
        yield nearest
    at, best_s, num_without_gain = min(times_s, key=times_s.__getitem__), min(times_s.values()), 0
    for _ in range(10 * budget):  # in case all orders have been simulated
        if (changed := _changed(at, first, rng)) in times_s:
            continue
        yield changed
        num_without_gain = 0 if times_s[changed] < best_s * (1 - ROUNDING) else num_without_gain + 1
        best_s = min(best_s, times_s[changed])
        at = changed if times_s[changed] <= times_s[at] else at
        if num_without_gain == MAX_WITHOUT_GAIN:
            return


def _message_times(network: Network, num_ranks: int, num_bytes: float) -> Floats:
    topology = network.topology(num_ranks)
    src, dst = np.nonzero(~np.eye(num_ranks, dtype=np.bool_))
    times_s = np.full((num_ranks, num_ranks), np.inf)
    fails = np.isfinite(fails_at_s(topology, src, dst))
    times_s[src, dst] = np.where(fails, np.inf, message_s(topology, src, dst, num_bytes))
    return times_s


def _nearest_neighbours(message_s: Floats) -> Ranks:
    order, left = [0], list(range(1, len(message_s)))
    while left:
        nearest = min(left, key=lambda rank: message_s[order[-1], rank])
        left.remove(nearest)
        order.append(nearest)
    return tuple(order)


def _changed(order: Ranks, first: int, rng: np.random.Generator) -> Ranks:
    begin, end = sorted(rng.choice(np.arange(first, len(order)), 2, replace=False).tolist())
    before, run, after = order[:begin], order[begin : end + 1], order[end + 1 :]
    match rng.integers(3):
        case 0:
            run = (run[-1], *run[1:-1], run[0])
        case 1:
            run = run[::-1]
        case _:
            middle = int(rng.integers(1, len(run)))
            run = run[middle:] + run[:middle]
    return before + run + after
