"""The table of a benchmark: the times and rates of each algorithm beside torch's, in 80 columns or with all of it.

The wide table has the columns of nccl-tests, and beside them who it was, the spread and the ratio.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from collectives.benchmark.case import torch_dtype
from ringsim.analysis import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.files import shortened
from ringsim.measurements import TORCH, CollectiveTimes, Measurements
from ringsim.schedule import OWNED, Collective
from ringsim.text_table import wrap_text
from ringsim.units import format_size, plural

TYPES = {"float32": "float", "float64": "double", "float16": "half"}  # as nccl-tests calls them
ROOTED = (Collective.BROADCAST, Collective.REDUCE)
_NOT_DONE = f"{'N/A':>7} {'N/A':>7} {'N/A':>7} {'N/A':>6}"
_HEAD = (
    f"#{'out-of-place':>73} {'in-place':>30}",
    f"#{'size':>11} {'count':>13} {'type':>9} {'redop':>7} {'root':>7}"
    + f"  {'time':>7} {'algbw':>7} {'busbw':>7} {'#wrong':>6}" * 2
    + f"  {'algorithm':<20} {'10%..90% (us)':>17} {'ratio':>6}  {'10%..90% (us)':>17} {'ratio':>6}",
    f"#{'(B)':>11} {'(elements)':>13} {'':>25}" + f"  {'(us)':>7} {'(GB/s)':>7} {'(GB/s)':>7} {'':>6}" * 2,
)
_FOOT = f"# ratio: the median time over that of {TORCH} (torch.distributed); below 1 is faster"


Halves = dict[bool, CollectiveTimes]  # by in_place


def format_table(measurements: Measurements, wide: bool = False) -> str:
    """Return a table for each collective that was timed; wide: with the columns of nccl-tests and the spread."""
    return _wide(measurements) if wide else _narrow(measurements)


def _narrow(measurements: Measurements) -> str:
    blocks = [wrap_text(f"# {line}", indent="#   ") for line in _origin(measurements)]
    for collective in dict.fromkeys(times.collective for times in measurements.collectives):
        times = [timed for timed in measurements.collectives if timed.collective is collective]
        kind = f"{times[0].dtype}, {times[0].op}" if collective.reduces else times[0].dtype
        places = sorted({timed.in_place for timed in times})
        blocks += ["", f"# {collective.value}, {plural(measurements.num_ranks, 'rank')}, {kind}", *_narrow_head(places)]
        blocks += [_narrow_row(row, times, places) for row in halves_of_rows(times)]
        blocks += [wrap_text(line, indent="#   ") for line in (*_wrong(times), *_means(times))]
    return "\n".join([*blocks, _FOOT])


def _narrow_head(places: Sequence[bool]) -> Iterator[str]:
    """Yield the lines above the columns; places: the halves of the table that were timed, by `in_place`."""
    titles = "".join(f"{'in-place' if in_place else 'out-of-place':>22}  " for in_place in places)
    yield f"#{'':>9}  {'':<18}{titles}".rstrip()
    yield f"#{'size':>9}  {'algorithm':<18}" + f"  {'time':>8} {'busbw':>6} {'ratio':>6}" * len(places)
    yield (f"#{'':>9}  {'':<18}" + f"  {'(us)':>8} {'(GB/s)':>6} {'':>6}" * len(places)).rstrip()


def _narrow_row(row: Halves, times: Sequence[CollectiveTimes], places: Sequence[bool]) -> str:
    first = next(iter(row.values()))
    halves = "".join(_narrow_half(row.get(in_place), times) for in_place in places)
    return f"{format_size(first.size_bytes):>10}  {shortened(first.algorithm, 18):<18}{halves}".rstrip()


def _narrow_half(times: CollectiveTimes | None, others: Sequence[CollectiveTimes]) -> str:
    if times is None:
        return f"  {'-':>8} {'-':>6} {'-':>6}"
    busbw = busbw_bytes_per_s(times.collective, times.num_ranks, times.size_bytes, times.median_s) or 0.0
    quotient = ratio(times, rival_of(times, others))
    return f"  {_us(times.median_s):>8} {busbw / 1e9:>6.2f} {'-' if quotient is None else f'{quotient:.2f}':>6}"


def _wrong(times: Sequence[CollectiveTimes]) -> Iterator[str]:
    for timed in times:
        if timed.wrong:
            place = "in place" if timed.in_place else "out of place"
            yield f"# WRONG: {timed.algorithm}, {format_size(timed.size_bytes)}, {place}: {timed.wrong} elements"


def _wide(measurements: Measurements) -> str:
    blocks = [f"# {line}" for line in _origin(measurements)]
    for collective in dict.fromkeys(times.collective for times in measurements.collectives):
        times = [timed for timed in measurements.collectives if timed.collective is collective]
        blocks += [
            "",
            f"# {collective.value}, {plural(measurements.num_ranks, 'rank')}",
            *(line.rstrip() for line in _HEAD),
            *_rows(times),
            *_means(times),
        ]
    return "\n".join([*blocks, _FOOT])


def ratio(times: CollectiveTimes, rival: CollectiveTimes | None) -> float | None:
    """How long it took in terms of its rival; None if there is none."""
    return None if rival is None else times.median_s / rival.median_s


def rival_of(times: CollectiveTimes, others: Sequence[CollectiveTimes], name: str = TORCH) -> CollectiveTimes | None:
    """Return the times of `name` in the same cell."""
    return next((other for other in others if other.algorithm == name and other.cell == times.cell), None)


def _origin(measurements: Measurements) -> Iterator[str]:
    where: dict[str, Any] = measurements.provenance
    yield f"{where.get('command', '')}"
    parts = [where.get("machine"), f"{where.get('cores')} cores", f"torch {where.get('torch')}"]
    parts += [f"OMP_NUM_THREADS={where.get('OMP_NUM_THREADS')}", where.get("date")]
    parts += [f"transport {where['transport']}"] if "transport" in where else []
    yield ", ".join(map(str, parts))


def _rows(times: Sequence[CollectiveTimes]) -> Iterator[str]:
    for row in halves_of_rows(times):
        yield _row(row, times)


def halves_of_rows(times: Sequence[CollectiveTimes]) -> list[Halves]:
    """Return the rows of a table, in order: what was timed of one size by one algorithm, out of place and in place."""
    halves: dict[tuple[int, str, str, str], Halves] = {}
    for timed in times:
        key = timed.size_bytes, timed.dtype, timed.op, timed.algorithm
        halves.setdefault(key, {})[timed.in_place] = timed
    return list(halves.values())


def _row(row: Halves, times: Sequence[CollectiveTimes]) -> str:
    first = next(iter(row.values()))
    # As nccl-tests counts: a rank's share where every rank has one.
    count = first.size_bytes // torch_dtype(first.dtype).itemsize
    count //= first.num_ranks if first.collective in OWNED else 1
    root = 0 if first.collective in ROOTED else -1
    kind = TYPES.get(first.dtype, first.dtype)
    halves = "  ".join(_half(row.get(in_place)) for in_place in (False, True))
    more = "  ".join(_more(row.get(in_place), times) for in_place in (False, True))
    left = f"{first.size_bytes:>12} {count:>13} {kind:>9} {first.op:>7} {root:>7}"
    return f"{left}  {halves}  {first.algorithm:<20} {more}"


def _half(times: CollectiveTimes | None) -> str:
    if times is None:
        return _NOT_DONE
    algbw = algbw_bytes_per_s(times.size_bytes, times.median_s) or math.nan
    busbw = busbw_bytes_per_s(times.collective, times.num_ranks, times.size_bytes, times.median_s)
    wrong = "N/A" if times.wrong is None else times.wrong
    return f"{_us(times.median_s):>7} {algbw / 1e9:>7.2f} {(busbw or 0.0) / 1e9:>7.2f} {wrong:>6}"


def _more(times: CollectiveTimes | None, others: Sequence[CollectiveTimes]) -> str:
    if times is None:
        return f"{'N/A':>17} {'N/A':>6}"
    low, high = times.p10_p90_s
    quotient = ratio(times, rival_of(times, others))
    return f"{f'{_us(low)}..{_us(high)}':>17} {'N/A' if quotient is None else f'{quotient:.2f}':>6}"


def _us(time_s: float) -> str:
    """Microseconds in few characters."""
    time_us = time_s * 1e6
    return f"{time_us:.2f}" if time_us < 99.995 else f"{time_us:.1f}" if time_us < 9999.95 else f"{time_us:.0f}"


def _means(times: Sequence[CollectiveTimes]) -> Iterator[str]:
    """For each algorithm of ours, the geometric mean of its ratios."""
    for algorithm in dict.fromkeys(timed.algorithm for timed in times if timed.algorithm != TORCH):
        means = []
        for in_place in (False, True):
            cells = [timed for timed in times if (timed.algorithm, timed.in_place) == (algorithm, in_place)]
            ratios = [value for cell in cells if (value := ratio(cell, rival_of(cell, times))) is not None]
            if ratios:
                means.append(f"{statistics.geometric_mean(ratios):.3f} {'in' if in_place else 'out of'} place")
        yield f"# {algorithm}: geometric mean of the ratios {', '.join(means) or 'N/A'}"
