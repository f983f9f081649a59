"""A row of nccl-tests as it is printed, and what its bandwidths tell.

busbw over algbw is a law of each collective, see `busbw_factor`: it tells the collective, or the number of ranks.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ringsim.measurements.logs.lines import LogRow, whole
from ringsim.units import decimal_number

ELEMENT_BYTES = {"int8": 1, "uint8": 1, "char": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1, "half": 2,
                 "bfloat16": 2, "float16": 2, "int32": 4, "uint32": 4, "int": 4, "float": 4, "float32": 4, "int64": 8,
                 "uint64": 8, "double": 8, "float64": 8}  # fmt: skip
# busbw over algbw on many ranks; on n ranks (n - 1) / n of it. Of other tests they are the same.
_BUSBW_LIMITS = {
    "all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "gather": 1.0, "scatter": 1.0,
    "alltoall": 1.0, "all_to_all": 1.0,
}  # fmt: skip
PER_RANK = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")  # their count is one rank's
_ROUNDING = 0.005  # GB/s, as bandwidths are printed with two digits
_NONE = ("N/A", "NA")


def busbw_factor(test: str, num_ranks: int) -> float:
    """Return busbw over algbw of a test, which makes busbw comparable with the bandwidth of a link, whatever the ranks.

    It is the share of the tensor that the busiest rank must send at least (doc/PERFORMANCE.md of nccl-tests).

    >>> busbw_factor("all_reduce", 4)
    1.5
    """
    return _BUSBW_LIMITS[test] * (num_ranks - 1) / num_ranks if test in _BUSBW_LIMITS else 1.0


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """A row as it is printed.

    sides: of each, out of place and in place: time (us; in version 1 ms), algbw and busbw (GB/s).
    wrong: how many elements were wrong, as it is printed; "" if none were, or it was not looked at.
    """

    line: int
    size: int
    count: int
    element: int
    reduces: bool
    has_root: bool
    sides: tuple[tuple[float, float, float], ...]
    wrong: str

    @classmethod
    def read(cls, line: int, named: dict[str, str], sides: list[list[str]], wrong_column: str) -> "PrintedRow":
        """Read a row from its values. Raises ValueError for what is no number."""
        counted = [side[3] for side in sides if len(side) > 3] if "wrong" in wrong_column else []
        wrong = next((text for text in counted if text not in _NONE and not decimal_number(text) <= 0), "")  # or NaN
        op, kind = named.get("redop", named.get("op", "none")), named["type"]
        size = whole(named.get("size", named.get("bytes", "0")))
        count = whole(named.get("count", named.get("N", "0")))
        element = ELEMENT_BYTES.get(kind) or (size // count if count else 1)
        has_root = named.get("root", "-1") != "-1" and whole(named["root"]) >= 0
        timed = tuple(
            (decimal_number(a), decimal_number(b), decimal_number(c)) for a, b, c, *_ in sides if a not in _NONE
        )
        return cls(line, size, count, element, op != "none", has_root, timed, wrong)

    def as_row(self, file: str, test: str, num_ranks: int | None) -> LogRow:
        """Return its size and times. Raises ValueError if they contradict its rates."""
        size = self.size
        if test in PER_RANK and num_ranks and self.count * self.element == size and self._bytes_by_rate(size) > 1.5:
            size *= num_ranks  # printed for one rank, though the rate is of all
        seconds = 1e-3 if self._bytes_by_rate(size) < 0.01 else 1e-6  # version 1 has milliseconds
        times = tuple(time * seconds for time, _, _ in self.sides)
        self._check(file, size, seconds)
        return LogRow(size, times, self.line)

    def _bytes_by_rate(self, size: int) -> float:
        """Bytes that the rate stands for, over `size`; 1 where the rate is too small to tell."""
        time, algbw, _ = self.sides[0]
        return algbw * 1e9 * time * 1e-6 / size if algbw >= 0.1 else 1.0

    def _check(self, file: str, size: int, seconds: float) -> None:
        for time, algbw, _ in self.sides:
            if time <= 0:
                raise ValueError(f"{file}: line {self.line}: time {time:g}: must be greater than 0")
            rate = size / (time * seconds) / 1e9
            if not abs(rate - algbw) <= 0.006 + 0.02 * rate:  # nor is it NaN
                raise ValueError(
                    f"{file}: line {self.line}: {size} bytes in {time * seconds:.6g} s are {rate:.3g} GB/s, but the "
                    f"row says {algbw:g}: it contradicts itself"
                )


def ratio_range(rows: Iterable[PrintedRow]) -> tuple[float, float]:
    """Return the lowest and the highest busbw over algbw that all rows, with their two digits, allow.

    Low is above high if they contradict each other; 0 and infinity if no rate is large enough to tell.
    """
    low, high = 0.0, math.inf
    for _, algbw, busbw in (side for row in rows for side in row.sides):
        if algbw > 2 * _ROUNDING:
            low = max(low, (busbw - _ROUNDING) / (algbw + _ROUNDING))
            high = min(high, (busbw + _ROUNDING) / (algbw - _ROUNDING))
    return low, high


def ranks_by_counts(rows: Iterable[PrintedRow]) -> int | None:
    """Return how many times as large as one rank's count the size is; None if it is as large, or rows contradict.

    Collectives whose count is one rank's have printed the size of all ranks since version 2.1, each row exactly.
    """
    ratios = {divmod(row.size, row.count * row.element) if row.count else (1, 0) for row in rows}
    ratio, rest = ratios.pop()
    return ratio if not ratios and not rest and ratio > 1 else None


def ranks_by_rates(test: str, rows: Iterable[PrintedRow]) -> int | None:
    """Return the number of ranks by busbw over algbw; None if several are possible, or the test has no such law."""
    low, high = ratio_range(rows)
    limit = _BUSBW_LIMITS.get(test, 0.0)
    if not low <= high < limit:
        return None
    fewest, largest = (limit / (limit - ratio) for ratio in (low, high))
    possible = range(math.ceil(fewest), math.floor(largest) + 1)
    return possible[0] if len(possible) == 1 and possible[0] > 1 else None
