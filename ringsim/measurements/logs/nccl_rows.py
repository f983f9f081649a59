"""A row of nccl-tests as it is printed, and what its bandwidths tell.

busbw over algbw is a law of each collective, see `busbw_factor`: it tells the collective, or the number of ranks.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ringsim.measurements.logs.lines import LogRow, whole
from ringsim.measurements.measurements import TESTS
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
_TELLS = 0.1  # GB/s: from here on, two digits tell enough
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

    op: the operation; "" if it is blank, as of hypercube.
    sides: of each, out of place and in place: time (us; in version 1 ms), algbw and busbw (GB/s).
    rounding: by how much each time may be off by its last digit, as a share of it, and each algbw (GB/s).
    wrong: how many elements were wrong, as it is printed; "" if none were, or it was not looked at.
    checks_in_place: whether the results in place are looked at, which alltoall and sendrecv cannot; None if unknown.
    """

    line: int
    size: int
    count: int
    element: int
    op: str
    has_root: bool
    sides: tuple[tuple[float, float, float], ...]
    rounding: tuple[tuple[float, float], ...]
    wrong: str
    checks_in_place: bool | None

    @classmethod
    def read(cls, line: int, named: dict[str, str], sides: list[list[str]], wrong_column: str) -> "PrintedRow":
        """Read a row from its values. Raises ValueError for what is no number."""
        checks = [side[3] for side in sides if len(side) > 3]
        counted = checks if "wrong" in wrong_column else []
        wrong = next((text for text in counted if text not in _NONE and not decimal_number(text) <= 0), "")  # or NaN
        size = whole(named.get("size", named.get("bytes", "0")))
        count = whole(named.get("count", named.get("N", "0")))
        element = ELEMENT_BYTES.get(named.get("type", "")) or max(size // (count or size or 1), 1)
        op = named.get("redop", named.get("op"))
        timed = [side[:3] for side in sides if side[0] not in _NONE]
        in_place = checks[1] not in _NONE if len(checks) > 1 and checks[0] not in _NONE else None
        if in_place is None and op is None and wrong_column == "error":
            in_place = True  # an old table: alltoall and sendrecv had a column of the operation
        has_root = named.get("root", "-1") != "-1" and whole(named["root"]) >= 0
        times = tuple((decimal_number(a), decimal_number(b), decimal_number(c)) for a, b, c in timed)
        rounding = tuple((_last_digit(a) / (decimal_number(a) or 1), _last_digit(b)) for a, b, _ in timed)
        op = "none" if op is None else op
        return cls(line, size, count, element, op, has_root, times, rounding, wrong, in_place)

    @property
    def reduces(self) -> bool:
        """Whether there is an operation."""
        return self.op not in ("", "none")

    def as_row(self, file: str, test: str, num_ranks: int | None) -> LogRow:
        """Return its size and times. Raises ValueError if they contradict its rates.

        Before June 2020 algbw of all_gather and reduce_scatter was its busbw: of the bytes that a rank sends.
        """
        size = self.size
        is_part = test in PER_RANK and num_ranks and self.count * self.element == size
        is_sent = test in PER_RANK and num_ranks and self.sides[0][1] == self.sides[0][2] >= _TELLS
        if is_part and (is_sent or self._bytes_by_rate(size) > 1.5):
            size *= num_ranks or 1  # printed for one rank, though the rate is of all
        share = busbw_factor(test, num_ranks) if is_sent and num_ranks else 1.0
        seconds = 1e-3 if self._bytes_by_rate(size) < 0.01 else 1e-6  # version 1 has milliseconds
        times = tuple(time * seconds for time, _, _ in self.sides)
        if test in TESTS and num_ranks != 1:  # nothing is sent on one
            self._check(file, size, seconds, share)
        return LogRow(size, times, self.line)

    def _bytes_by_rate(self, size: int) -> float:
        """Bytes that the rate stands for, over `size`; 1 where the rate is too small to tell."""
        time, algbw, _ = self.sides[0]
        return algbw * 1e9 * time * 1e-6 / size if algbw >= _TELLS else 1.0

    def _check(self, file: str, size: int, seconds: float, share: float) -> None:
        for (time, algbw, _), (of_time, of_rate) in zip(self.sides, self.rounding, strict=True):
            if not time > 0:
                raise ValueError(f"{file}: line {self.line}: time {time:g}: must be greater than 0")
            rate = share * size / (time * seconds) / 1e9
            if not abs(rate - algbw) <= 1.2 * of_rate + (0.02 + of_time) * rate:  # nor is it NaN
                raise ValueError(
                    f"{file}: line {self.line}: {size} bytes in {time * seconds:.6g} s are {rate:.3g} GB/s, but the "
                    f"row says {algbw:g}: it contradicts itself"
                )


def _last_digit(text: str) -> float:
    """Return half a unit of the last digit of a number, such as 0.05 of 1.5."""
    digits, _, exponent = text.lower().partition("e")
    return 0.5 * 10.0 ** min(int(exponent or 0) - len(digits.partition(".")[2]), 300)


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
