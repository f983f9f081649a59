"""`BenchmarkPlan`: what a benchmark is asked to do, checked before anything begins."""

from dataclasses import dataclass
from inspect import signature
from itertools import count, takewhile

from collectives import calls
from collectives.benchmark.case import BenchmarkCase, elements_of, pattern
from collectives.calls import AUTO, FIRST
from ringsim.registry import ALGORITHMS, base_name, build
from ringsim.schedule import Collective, require_installed_memory

COLLECTIVES = {function.name.removesuffix("_single"): collective for collective, function in FIRST.items()}
COPIES = 6  # of the largest tensor: data, buffers, what must come of it, what the algorithms keep, and Gloo
MAX_TRANSFERS = 100_000  # of a recorded run; a line of JSON for each of their times


@dataclass(frozen=True, slots=True)
class BenchmarkPlan:
    """The collectives, algorithms and sizes to time, and how often.

    algorithms: what to time beside torch's own; if empty, the one that is our default for the collective.
    sizes_bytes: of whole tensors, each rounded down to equal shares where the collective has them.
    in_place: whether in place; both, one after the other, if there are two. An all_to_all is never in place.
    iterations: None for as many as fit into `cell_time_s`.
    calls: in a row, in each iteration; None for as many as take a few milliseconds.
    plain_ring: whether a ring of isend and irecv is timed too.
    shared: whether the tensors are those of `collectives.empty`.
    probes: whether to probe the group first, for `ringsim calibrate`.
    record: whether to record one run of each algorithm, transfer by transfer, for `ringsim compare`.
    """

    collectives: tuple[Collective, ...]
    algorithms: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    dtype: str = "float32"
    in_place: tuple[bool, ...] = (False, True)
    iterations: int | None = None
    calls: int | None = None
    warm_up: int = 2
    cell_time_s: float = 1.0
    plain_ring: bool = False
    shared: bool = False
    probes: bool = False
    record: bool = False

    def cases(self, num_ranks: int) -> list[BenchmarkCase]:
        """All there is to time, in order. Raises ValueError for a size that is too small."""
        cases = {
            BenchmarkCase(collective, elements, self.dtype, num_ranks, in_place): None
            for collective in self.collectives
            for size in self.sizes_bytes
            for elements in [elements_of(collective, size, self.dtype, num_ranks)]
            for in_place in ((False,) if collective is Collective.ALL_TO_ALL else self.in_place)
        }
        return list(cases)

    def algorithms_for(self, collective: Collective) -> tuple[str, ...]:
        """Those to time: of a built-in algorithm's collectives those that are asked for, beside the others' own."""
        own = {name for owner, name in ALGORITHMS if owner is collective}
        elsewhere = {name for owner, name in ALGORITHMS if owner in self.collectives} - own
        known = [name for name in self.algorithms if base_name(name) not in elsewhere]
        return tuple(known) or (signature(getattr(calls, FIRST[collective].name)).parameters["algorithm"].default,)

    def check(self, num_ranks: int, ranks_here: int) -> None:
        """Raise ValueError for what could not be done: an unknown algorithm, no sums of such numbers, no memory."""
        largest = max(self.sizes_bytes)
        for collective in self.collectives:
            for algorithm in self.algorithms_for(collective):
                schedule = None if algorithm == AUTO else build(collective, algorithm, num_ranks, largest)
                if schedule and self.record and schedule.num_transfers > MAX_TRANSFERS:
                    has = f"{schedule} has {schedule.num_transfers:,}"
                    raise ValueError(f"--record: a run of at most {MAX_TRANSFERS:,} transfers; {has}")
        for case in {case.collective: case for case in self.cases(num_ranks)}.values():
            pattern(case)
        if self.record and num_ranks == 1:
            raise ValueError("--record: needs at least 2 ranks; 1 has nothing to send")
        # Ranks that got different answers would wait for each other.
        require_installed_memory(f"size {largest} B on {ranks_here} ranks", COPIES * largest * ranks_here)


def growing_sizes(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """From `begin`, each `factor` times the one before, up to `end`. Raises ValueError for a range that is none."""
    if not 1 <= begin <= end:
        rule = "the first (-b) must be at least 1 and not above the last (-e)"
        raise ValueError(f"sizes from {begin} to {end} B: {rule}")
    return tuple(takewhile(lambda size: size <= end, (begin * factor**power for power in count())))
