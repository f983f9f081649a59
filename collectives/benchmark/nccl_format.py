"""The result of a benchmark as nccl-tests prints it, for the tools that read that.

The lines are those of nccl-tests 2.17 (src/util.cu there: `writeDeviceReport`, `writeResultHeader`,
`writeBenchmarkLineBody`, `writeResultFooter`), but for the first one, which would claim to be NCCL's. A time is, as
there, the mean of all iterations; that of an iteration is the slowest rank's.
"""

import statistics
from collections.abc import Iterator, Sequence

from collectives.benchmark.case import torch_dtype
from collectives.benchmark.plan import BenchmarkPlan
from ringsim.analysis import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.measurements import TORCH, CollectiveTimes, Measurements, RankHosts

_TYPES = {"float32": "float", "float64": "double", "float16": "half"}  # as nccl-tests calls them
_LEFT = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
_HALF = "  {:>7}  {:>6}  {:>6}  {:>6}"
_NO_HALF = " " * 32
Halves = dict[bool, CollectiveTimes]  # by in_place


def format_nccl_tests(measurements: Measurements, plan: BenchmarkPlan) -> str:
    """Return what a run of nccl-tests prints, for each collective one after the other.

    Torch's own times are left out.
    """
    lines: list[str] = []
    for collective in dict.fromkeys(times.collective for times in measurements.collectives):
        times = [one for one in measurements.collectives if one.collective is collective and one.algorithm != TORCH]
        lines += _run(f"{collective.value}_perf", times, measurements, plan)
    return "\n".join(lines)


def _run(
    program: str, times: Sequence[CollectiveTimes], measurements: Measurements, plan: BenchmarkPlan
) -> Iterator[str]:
    yield f"# Collective test starting: {program}"
    yield _options(times, plan)
    yield "#"
    yield "# Using devices"
    yield from _devices(measurements)
    yield "#"
    yield from _heading()
    yield from (_row(row) for row in _halves_of_rows(times))
    wrong = sum(one.wrong or 0 for one in times)
    rates = [rate / 1e9 for one in times if (rate := _busbw(one)) is not None]
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {statistics.fmean(rates or [0.0]):g} "
    yield "#"
    yield f"# Collective test concluded: {program}"


def _options(times: Sequence[CollectiveTimes], plan: BenchmarkPlan) -> str:
    iterations = max(len(one.times_s) for one in times)
    factor = plan.sizes_bytes[1] // plan.sizes_bytes[0] if plan.sizes_bytes[1:] else 2
    return (
        f"# nThread 1 nGpus 1 minBytes {plan.sizes_bytes[0]} maxBytes {plan.sizes_bytes[-1]} step: {factor}(factor) "
        f"warmup iters: {plan.warm_up} iters: {iterations} agg iters: {max(one.calls for one in times)} validation: 1 "
        f"graph: 0 unalign: 0"
    )


def _devices(measurements: Measurements) -> Iterator[str]:
    """Yield a CPU for each rank; processes have numbers on their hosts that nobody has noted."""
    places = RankHosts.from_measurements(measurements)
    hosts = places.hosts if places else (0,) * measurements.num_ranks
    for rank, host in enumerate(hosts):
        device = hosts[:rank].count(host)
        name = measurements.provenance.get("machine") or "CPU"
        yield f"#  Rank {rank:2} Group  0 Pid {0:6} on {f'host{host}':>10} device {device:2} [0000:00:00] {name}"


def _heading() -> Iterator[str]:
    left = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}".format
    half = _HALF.format
    yield "#"
    yield f"{left('', '', '', '', '')}           out-of-place                       in-place          "
    yield f"{left('size', 'count', 'type', 'redop', 'root')}{2 * half('time', 'algbw', 'busbw', '#wrong')} "
    yield f"{left('(B)', '(elements)', '', '', '')}{2 * half('(us)', '(GB/s)', '(GB/s)', '')} "


def _halves_of_rows(times: Sequence[CollectiveTimes]) -> list[Halves]:
    """Return the rows of a table, in order: what was timed of one size by one algorithm, out of place and in place."""
    halves: dict[tuple[int, str, str, str], Halves] = {}
    for timed in times:
        key = timed.size_bytes, timed.dtype, timed.op, timed.algorithm
        halves.setdefault(key, {})[timed.in_place] = timed
    return list(halves.values())


def _row(row: Halves) -> str:
    first = next(iter(row.values()))
    share = first.num_ranks if first.collective.num_shares(first.num_ranks) > 1 else 1
    count = first.size_bytes // torch_dtype(first.dtype).itemsize // share
    root = 0 if first.collective.has_root else -1
    left = _LEFT.format(first.size_bytes, count, _TYPES.get(first.dtype, first.dtype), first.op, root)
    return left + "".join(_half(row.get(in_place)) for in_place in (False, True))


def _half(times: CollectiveTimes | None) -> str:
    if times is None:
        return _NO_HALF
    mean_s = statistics.fmean(times.times_s)
    algbw = algbw_bytes_per_s(times.size_bytes, mean_s) or 0.0
    wrong = "N/A" if times.wrong is None else f"{times.wrong:g}"
    rates = (_number(rate / 1e9, 6) for rate in (algbw, _busbw(times) or 0.0))
    return _HALF.format(_number(mean_s * 1e6, 7), *rates, wrong)


def _busbw(times: CollectiveTimes) -> float | None:
    return busbw_bytes_per_s(times.collective, times.num_ranks, times.size_bytes, statistics.fmean(times.times_s))


def _number(value: float, width: int) -> str:
    """As many decimals as fit, up to two: nccl-tests' `getFloatStr`."""
    digits = len(str(int(value))) if value >= 1 else 0
    decimals = 2 if digits < width - 2 else 1 if digits < width - 1 else 0
    return f"{value:.{decimals}f}" if digits < width + 1 else f"{value:.{1 if width >= 7 else 0}e}"
