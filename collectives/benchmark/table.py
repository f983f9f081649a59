"""The table of a benchmark: the times and rates of each algorithm and of torch."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from ringsim.analysis import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.files import shortened
from ringsim.measurements import LIMIT, TORCH, CollectiveTimes, Measurements
from ringsim.text_table import align_columns, wrap_text
from ringsim.units import format_rate, format_size, format_time, plural

COLUMNS = ("size", "algorithm", "in place", "time", "busbw", "ratio")
OVER_LIMIT = "over limit"
WIDE_COLUMNS = "10%", "90%", "algbw", "wrong"
_FOOT = f"# ratio: the median time over that of {TORCH} (torch.distributed); below 1 is faster"
_LIMIT_FOOT = f"# {OVER_LIMIT}: likewise over that of {LIMIT}, one process that reads all inputs and writes all results"


def format_table(measurements: Measurements, wide: bool = False) -> str:
    """Return a table per collective; wide: with spread, algbw and wrong elements."""
    blocks = [line if wide else wrap_text(line, indent="#   ") for line in _origin(measurements)]
    for collective in dict.fromkeys(times.collective for times in measurements.collectives):
        times = [timed for timed in measurements.collectives if timed.collective is collective]
        kind = f"{times[0].dtype}, {times[0].op}" if collective.reduces else times[0].dtype
        blocks += ["", f"# {collective.value}, {plural(measurements.num_ranks, 'rank')}, {kind}"]
        limited = any(timed.algorithm == LIMIT for timed in times)
        columns = [*COLUMNS, *([OVER_LIMIT] if limited else []), *(WIDE_COLUMNS if wide else ())]
        blocks += align_columns([columns, *(_row(timed, times, limited, wide) for timed in times)], "rllr")
        blocks += [wrap_text(line, indent="#   ") for line in (*_wrong(times), *_means(times))]
    blocks.append(_FOOT)
    if any(times.algorithm == LIMIT for times in measurements.collectives):
        blocks.append(wrap_text(_LIMIT_FOOT, indent="#   "))
    return "\n".join(blocks)


def _row(times: CollectiveTimes, others: Sequence[CollectiveTimes], limited: bool, wide: bool) -> list[str]:
    rivals = (TORCH, LIMIT) if limited else (TORCH,)
    ratios = [ratio(times, rival_of(times, others, rival)) for rival in rivals]
    row = [
        format_size(times.size_bytes),
        shortened(times.algorithm, 18),
        "yes" if times.in_place else "no",
        format_time(times.median_s),
        format_rate(busbw_bytes_per_s(times.collective, times.num_ranks, times.size_bytes, times.median_s) or 0.0),
        *("-" if quotient is None else f"{quotient:.2f}" for quotient in ratios),
    ]
    if wide:
        row += map(format_time, times.p10_p90_s)
        row.append(format_rate(algbw_bytes_per_s(times.size_bytes, times.median_s) or 0.0))
        row.append("-" if times.wrong is None else str(times.wrong))
    return row


def _wrong(times: Sequence[CollectiveTimes]) -> Iterator[str]:
    for timed in times:
        if timed.wrong:
            place = "in place" if timed.in_place else "out of place"
            yield f"# WRONG: {timed.algorithm}, {format_size(timed.size_bytes)}, {place}: {timed.wrong} elements"


def ratio(times: CollectiveTimes, rival: CollectiveTimes | None) -> float | None:
    """Return the time over the rival's time; None without a rival."""
    return None if rival is None else times.median_s / rival.median_s


def rival_of(times: CollectiveTimes, others: Sequence[CollectiveTimes], name: str = TORCH) -> CollectiveTimes | None:
    """Return the times of `name` in the same cell."""
    return next((other for other in others if other.algorithm == name and other.cell == times.cell), None)


def _origin(measurements: Measurements) -> Iterator[str]:
    where: dict[str, Any] = measurements.provenance
    yield f"# {where.get('command', '')}"
    parts = [where.get("machine"), f"{where.get('cores')} cores", f"torch {where.get('torch')}"]
    parts += [f"OMP_NUM_THREADS={where.get('OMP_NUM_THREADS')}", where.get("date")]
    parts += [f"transport {where['transport']}"] if "transport" in where else []
    yield "# " + ", ".join(map(str, parts))


def _means(times: Sequence[CollectiveTimes]) -> Iterator[str]:
    for algorithm in dict.fromkeys(timed.algorithm for timed in times if timed.algorithm not in (TORCH, LIMIT)):
        means = []
        for in_place in (False, True):
            cells = [timed for timed in times if (timed.algorithm, timed.in_place) == (algorithm, in_place)]
            ratios = [value for cell in cells if (value := ratio(cell, rival_of(cell, times))) is not None]
            if ratios:
                means.append(f"{statistics.geometric_mean(ratios):.3f} {'in' if in_place else 'out of'} place")
        yield f"# {algorithm}: geometric mean of the ratios {', '.join(means) or 'N/A'}"
