"""`BenchmarkPlan`: the request of a benchmark, checked before anything begins; `BenchmarkCase`: one of its cases.

A rank's elements repeat its own table of random whole numbers, whose length is a large prime, to detect a misplaced
chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from itertools import count, takewhile
from typing import Self

import torch

from collectives.calls import AUTO, FIRST, functions
from ringsim.limits import require_installed_memory
from ringsim.registry import ALGORITHMS, base_name, build
from ringsim.schedule import Collective

_DTYPE_NAMES = "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _DTYPE_NAMES}
_GATHERS = Collective.ALL_GATHER, Collective.GATHER
_SCATTERS = Collective.REDUCE_SCATTER, Collective.SCATTER


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One collective of one size among `num_ranks` ranks.

    num_elements: of the whole tensor: the input of reduce_scatter and scatter, the output of all_gather and gather, a
    rank's input of all_to_all. dtype: a name in DTYPES.
    """

    collective: Collective
    num_elements: int
    dtype: str
    num_ranks: int
    in_place: bool

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def size_bytes(self) -> int:
        return self.num_elements * self.torch_dtype.itemsize

    @property
    def op(self) -> str:
        return "sum" if self.collective.reduces else "none"

    @property
    def share(self) -> int:
        return self.num_elements // self.num_ranks

    def __str__(self) -> str:
        place = "in place" if self.in_place else "out of place"
        return f"{self.collective.value} of {self.size_bytes} bytes, {self.dtype}, {place}"


def elements_of(collective: Collective, size_bytes: int, dtype: str, num_ranks: int) -> int:
    """Return the elements that fit into `size_bytes`, a multiple of the ranks if each rank has a share.

    Raises ValueError if none fits.
    """
    multiple = num_ranks if collective.num_shares(num_ranks) > 1 else 1
    least_bytes = multiple * DTYPES[dtype].itemsize
    if size_bytes < least_bytes:
        needs = f"{collective.value} of {dtype} on {num_ranks} ranks needs at least {least_bytes}"
        raise ValueError(f"size {size_bytes} B: {needs}; begin (-b) with this size")
    return size_bytes // least_bytes * multiple


PERIOD = 65521
MAX_VALUE = 1000  # small numbers show as much
# Whole numbers up to this one are exact in the dtype; their sums are the same in any order.
_EXACT = {torch.bfloat16: 2**8, torch.float16: 2**11}


@dataclass(frozen=True, slots=True)
class Pattern:
    """The data of one case. tables: (num_ranks, PERIOD), int64."""

    case: BenchmarkCase
    tables: torch.Tensor

    def given(self, rank: int) -> torch.Tensor:
        case = self.case
        return self._repeat(self.tables[rank], case.share if case.collective in _GATHERS else case.num_elements)

    def result(self, rank: int) -> torch.Tensor | None:
        """Return the expected output of `rank`; None where undefined, as after reduce on all but the root."""
        case = self.case
        own = slice(rank * case.share, (rank + 1) * case.share)
        if case.collective in (Collective.REDUCE, Collective.GATHER) and rank != 0:
            return None
        if case.collective in _GATHERS:
            return torch.cat([self.given(other) for other in range(case.num_ranks)])
        if case.collective is Collective.ALL_TO_ALL:
            return torch.cat([self.given(other)[own] for other in range(case.num_ranks)])
        reduces = case.collective.reduces
        whole = self._repeat(self.tables.sum(dim=0) if reduces else self.tables[0], case.num_elements)
        return whole[own] if case.collective in _SCATTERS else whole

    def count_wrong(self, rank: int, output: torch.Tensor) -> int:
        result = self.result(rank)
        return 0 if result is None else int((output != result).sum())

    def _repeat(self, table: torch.Tensor, length: int) -> torch.Tensor:
        return table.to(self.case.torch_dtype).repeat(-(-length // PERIOD))[:length]


def pattern(case: BenchmarkCase) -> Pattern:
    """Return the data of `case`, always the same. Raises ValueError if a sum over all ranks could be rounded."""
    dtype = case.torch_dtype
    exact = _EXACT.get(dtype, 2**24) if dtype.is_floating_point else torch.iinfo(dtype).max
    values = min((exact - 1) // (case.num_ranks if case.collective.reduces else 1), MAX_VALUE)
    if values < 2:
        sums = f"sums of {case.num_ranks} ranks cannot all be exact"
        raise ValueError(f"dtype {case.dtype}: {sums}: choose a larger dtype")
    generator = torch.Generator().manual_seed(0)
    return Pattern(case, torch.randint(values, (case.num_ranks, PERIOD), generator=generator))


UNWRITTEN = -1  # in every dtype a value that no result has


@dataclass(frozen=True, slots=True)
class Buffers:
    """One rank's memory.

    data: the input, only read. input, output: the operands of a call. In place they are the same, or the smaller one is
    this rank's share of the larger.
    """

    data: torch.Tensor
    input: torch.Tensor
    output: torch.Tensor

    @classmethod
    def of(cls, pattern: Pattern, rank: int, allocate: Callable[..., torch.Tensor] = torch.empty) -> Self:
        """Return the tensors of `rank`. allocate: as `torch.empty`."""
        case, given = pattern.case, pattern.given(rank)

        def new(length: int) -> torch.Tensor:
            return allocate(length, dtype=case.torch_dtype)

        data = new(len(given)).copy_(given)
        own = slice(rank * case.share, (rank + 1) * case.share)
        if case.collective in _GATHERS:
            output = new(case.num_elements)
            return cls(data, output[own] if case.in_place else data, output)
        input_ = new(len(data)).copy_(data) if case.in_place else data
        if case.collective in _SCATTERS:
            return cls(data, input_, input_[own] if case.in_place else new(case.share))
        return cls(data, input_, input_ if case.in_place else new(len(data)))

    @classmethod
    def of_all(cls, pattern: Pattern) -> list[Self]:
        everyone = [cls.of(pattern, rank) for rank in range(pattern.case.num_ranks)]
        for own in everyone:
            own.refill()
        return everyone

    def refill(self) -> None:
        if self.input is not self.data:
            self.input.copy_(self.data)

    def invalidate_output(self) -> None:
        """Fill the output with wrong values, to detect an implementation that does nothing."""
        self.output.copy_(torch.tensor(UNWRITTEN).to(self.output.dtype))

    def copied(self) -> torch.Tensor:
        """Return the output with a copy of the input: no library has all_reduce, broadcast or reduce out of place."""
        if self.output is not self.input:
            self.output.copy_(self.input)
        return self.output


COLLECTIVES = {function.name.removesuffix("_single"): collective for collective, function in FIRST.items()}
COPIES = 6  # of the largest tensor: data, buffers, expected results, and those of the algorithms and of Gloo
MAX_TRANSFERS = 100_000  # of a recorded run; a line of JSON for each of their times


@dataclass(frozen=True, slots=True)
class BenchmarkPlan:
    """The collectives, algorithms and sizes to time, and how often.

    algorithms: in addition to torch's own; if empty, our default for the collective.
    sizes_bytes: of whole tensors, rounded down to equal shares where the collective has them.
    in_place: the kinds to time; an all_to_all is never in place.
    iterations: None for as many as fit into `cell_time_s`.
    calls: in a row per iteration; None for as many as take 50 ms.
    plain_ring, limit: also time a ring of isend and irecv, and the limit of the memory that the ranks share.
    shared: allocate tensors by `collectives.empty`.
    record: a run of each algorithm.
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
    limit: bool = False
    shared: bool = False
    probes: bool = False
    record: bool = False

    def cases(self, num_ranks: int) -> list[BenchmarkCase]:
        cases = {
            BenchmarkCase(collective, elements, self.dtype, num_ranks, in_place): None
            for collective in self.collectives
            for size in self.sizes_bytes
            for elements in [elements_of(collective, size, self.dtype, num_ranks)]
            for in_place in ((False,) if collective is Collective.ALL_TO_ALL else self.in_place)
        }
        return list(cases)

    def algorithms_for(self, collective: Collective) -> tuple[str, ...]:
        own = {name for owner, name in ALGORITHMS if owner is collective}
        elsewhere = {name for owner, name in ALGORITHMS if owner in self.collectives} - own
        known = [name for name in self.algorithms if base_name(name) not in elsewhere]
        return tuple(known) or (signature(getattr(functions, FIRST[collective].name)).parameters["algorithm"].default,)

    def check(self, num_ranks: int, ranks_here: int) -> None:
        """Raise ValueError for an unknown algorithm, inexact sums, or too little memory."""
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
        require_installed_memory(f"size {largest} B on {ranks_here} ranks", COPIES * largest * ranks_here)


def growing_sizes(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Return the sizes from `begin` to `end`, growing by `factor`. Raises ValueError if there are none."""
    if not 1 <= begin <= end:
        rule = "the first (-b) must be at least 1 and not above the last (-e)"
        raise ValueError(f"sizes from {begin} to {end} B: {rule}")
    return tuple(takewhile(lambda size: size <= end, (begin * factor**power for power in count())))
