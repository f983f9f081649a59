"""`BenchmarkPlan`: what a benchmark is asked to do, checked before anything begins."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from collectives.benchmark.case import NO_OP, OPS, BenchmarkCase, elements_of, pattern, torch_dtype
from collectives.calls import AUTO, reduction_of
from ringsim.registry import ALGORITHMS, base_name, build
from ringsim.schedule import Collective, require_installed_memory

COLLECTIVES = {  # by torch's names for those that work on tensors
    "all_reduce": Collective.ALL_REDUCE,
    "reduce_scatter_tensor": Collective.REDUCE_SCATTER,
    "all_gather_into_tensor": Collective.ALL_GATHER,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
    "all_to_all": Collective.ALL_TO_ALL,  # on one tensor, as all_to_all_single does it
}
COPIES = 6  # of the largest tensor: data, buffers, what must come of it, what the algorithms keep, and Gloo
MAX_TRANSFERS = 100_000  # of a recorded run; a line of JSON for each of their times
_DEFAULTS = {  # what our functions take if no algorithm is named; the others take a ring
    Collective.BROADCAST: "binomial_tree",
    Collective.REDUCE: "binomial_tree",
    Collective.GATHER: "direct",
    Collective.SCATTER: "direct",
    Collective.ALL_TO_ALL: "direct",
}


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
    record_bytes: of the whole tensor in such a run; None for the largest of `sizes_bytes`.
    """

    collectives: tuple[Collective, ...]
    algorithms: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    dtype: str = "float32"
    op: str = "sum"
    in_place: tuple[bool, ...] = (False, True)
    iterations: int | None = None
    calls: int | None = None
    warm_up: int = 2
    cell_time_s: float = 1.0
    seed: int = 0
    plain_ring: bool = False
    shared: bool = False
    probes: bool = False
    record: bool = False
    record_bytes: int | None = None

    def cases(self, num_ranks: int) -> list[BenchmarkCase]:
        """All there is to time, in order. Raises ValueError for a size that is too small."""
        cases = {
            BenchmarkCase(
                collective, elements, self.dtype, self.op if collective.reduces else NO_OP, num_ranks, in_place
            ): None
            for collective in self.collectives
            for size in self.sizes_bytes
            for elements in [elements_of(collective, size, self.dtype, num_ranks)]
            for in_place in ((False,) if collective is Collective.ALL_TO_ALL else self.in_place)
        }
        return list(cases)

    def recorded(self, num_ranks: int) -> list[BenchmarkCase]:
        """Return what to record runs of; nothing if `record` is not set.

        Raises ValueError for a size that is too small.
        """
        size = max(self.sizes_bytes) if self.record_bytes is None else self.record_bytes
        return replace(self, sizes_bytes=(size,), in_place=(True,)).cases(num_ranks) if self.record else []

    def not_larger(self, case: BenchmarkCase) -> Iterator[BenchmarkCase]:
        """Yield `case`, then it with the smaller sizes of the plan, then with halves of the smallest."""
        yield case
        sizes = sorted((size for size in self.sizes_bytes if size < case.size_bytes), reverse=True)
        while True:
            size = sizes.pop(0) if sizes else case.size_bytes // 2
            (case,) = replace(self, collectives=(case.collective,), sizes_bytes=(size,), in_place=(True,)).cases(
                case.num_ranks
            )
            yield case

    def algorithms_for(self, collective: Collective) -> tuple[str, ...]:
        """Those to time: of a built-in algorithm's collectives those that are asked for, beside the others' own."""
        elsewhere = {name for owner, name in ALGORITHMS if owner in self.collectives and owner is not collective}
        known = [
            name
            for name in self.algorithms
            if (collective, base_name(name)) in ALGORITHMS or base_name(name) not in elsewhere
        ]
        return tuple(known) or (_DEFAULTS.get(collective, "ring"),)

    def check(self, num_ranks: int, ranks_here: int) -> None:
        """Raise ValueError for what could not be done: an unknown algorithm, no sums of such numbers, no memory."""
        for collective in self.collectives:
            for algorithm in self.algorithms_for(collective):
                if algorithm != AUTO:
                    build(collective, algorithm, num_ranks)
        if any(collective.reduces for collective in self.collectives):
            self._check_reduction()
        for case in self.cases(num_ranks)[:1]:
            pattern(case, self.seed)
        self._check_recorded(num_ranks)
        largest = max(*self.sizes_bytes, self.record_bytes or 0)
        # Ranks that got different answers would wait for each other.
        require_installed_memory(f"size {largest} B on {ranks_here} ranks", COPIES * largest * ranks_here)

    def _check_reduction(self) -> None:
        """Raise ValueError unless both sides can do it: every rank would fail in the first call of the other."""
        dtype = torch_dtype(self.dtype)
        reduction_of(OPS[self.op], dtype)
        if self.op == "avg" and not dtype.is_floating_point:
            raise ValueError(
                f"--op avg: torch.distributed on Gloo has no average of {self.dtype} to compare with: choose --op sum "
                f"or a floating-point --dtype"
            )

    def _check_recorded(self, num_ranks: int) -> None:
        if self.record_bytes is not None and not self.record:
            raise ValueError("--record-size: nothing is recorded: also give --record")
        if self.record and num_ranks == 1:
            raise ValueError("--record: needs at least 2 ranks; 1 has nothing to send")
        for case in self.recorded(num_ranks):
            for algorithm in self.algorithms_for(case.collective):
                if algorithm != AUTO:
                    schedule = build(case.collective, algorithm, num_ranks, case.size_bytes)
                    if schedule.num_transfers > MAX_TRANSFERS:
                        raise ValueError(
                            f"--record: a run of at most {MAX_TRANSFERS:,} transfers; {schedule} has "
                            f"{schedule.num_transfers:,}"
                        )


def growing_sizes(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """From `begin`, each `factor` times the one before, up to `end`. Raises ValueError for a range that is none."""
    if not 1 <= begin <= end:
        raise ValueError(
            f"sizes from {begin} to {end} B: the first (-b) must be at least 1 and not above the last (-e)"
        )
    sizes = [begin]
    while sizes[-1] * factor <= end:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)
