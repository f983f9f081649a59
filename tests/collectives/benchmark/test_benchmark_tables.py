"""The tables of the benchmark, from made-up times, to the letter."""

from dataclasses import replace
from pathlib import Path

import pytest

from collectives.benchmark.nccl_format import format_nccl_tests
from collectives.benchmark.plan import BenchmarkPlan
from collectives.benchmark.table import format_table
from ringsim.measurements.collective_times import CollectiveTimes
from ringsim.measurements.logs.reader import read_logs
from ringsim.measurements.measurements import Measurements
from ringsim.schedule.collective import Collective

WHERE = {
    "command": "torchrun -m collectives.benchmark",
    "machine": "abacus",
    "cores": 2,
    "torch": "2.13",
    "OMP_NUM_THREADS": "1",
    "date": "today",
}


def times(algorithm: str, size_bytes: int, median_s: float, **more: object) -> CollectiveTimes:
    """Eleven iterations around the median."""
    found = CollectiveTimes(
        collective=Collective.ALL_REDUCE,
        algorithm=algorithm,
        size_bytes=size_bytes,
        dtype="float32",
        op="sum",
        num_ranks=4,
        in_place=False,
        wrong=0,
        calls=1,
        arrival_skew_s=(0.0,) * 11,
        times_s=tuple(median_s * (0.5 + 0.1 * step) for step in range(11)),
        positions=(0,) * 11,
        rank_medians_s=(median_s,) * 4,
    )
    return replace(found, **more)  # type: ignore[arg-type]


MADE_UP = Measurements(
    4,
    WHERE,
    collectives=(
        times("dist", 64, 100e-6),
        times("ring", 64, 50e-6, wrong=3),
        times("dist", 64, 200e-6, in_place=True),
        times("ring", 64, 300e-6, in_place=True),
        times("dist", 67108864, 0.12),
        times("ring", 67108864, 0.09),
        times("plain_ring", 67108864, 0.06, wrong=None),
        times("dist", 4096, 1e-3, collective=Collective.ALL_GATHER, op="none", dtype="bfloat16", in_place=True),
    ),
)

TABLE = """\
# torchrun -m collectives.benchmark
# abacus, 2 cores, torch 2.13, OMP_NUM_THREADS=1, today

# all_reduce, 4 ranks
#                                                             out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong  algorithm                10%..90% (us)  ratio      10%..90% (us)  ratio
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
          64            16     float     sum      -1    100.0    0.00    0.00      0    200.0    0.00    0.00      0  dist                      60.00..140.0   1.00       120.0..280.0   1.00
          64            16     float     sum      -1    50.00    0.00    0.00      3    300.0    0.00    0.00      0  ring                      30.00..70.00   0.50       180.0..420.0   1.50
    67108864      16777216     float     sum      -1   120000    0.56    0.84      0      N/A     N/A     N/A    N/A  dist                     72000..168000   1.00                N/A    N/A
    67108864      16777216     float     sum      -1    90000    0.75    1.12      0      N/A     N/A     N/A    N/A  ring                     54000..126000   0.75                N/A    N/A
    67108864      16777216     float     sum      -1    60000    1.12    1.68    N/A      N/A     N/A     N/A    N/A  plain_ring                36000..84000   0.50                N/A    N/A
# ring: geometric mean of the ratios 0.612 out of place, 1.500 in place
# plain_ring: geometric mean of the ratios 0.500 out of place

# all_gather, 4 ranks
#                                                             out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong  algorithm                10%..90% (us)  ratio      10%..90% (us)  ratio
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        4096           512  bfloat16    none      -1      N/A     N/A     N/A    N/A   1000.0    0.00    0.00      0  dist                               N/A    N/A      600.0..1400.0   1.00
# ratio: the median time over that of dist (torch.distributed); below 1 is faster
"""  # noqa: E501


def test_the_table() -> None:
    """Columns of nccl-tests, then who, how far apart and the ratio; halves and results that are not there are N/A."""
    assert format_table(MADE_UP, wide=True) + "\n" == TABLE


def test_nccl_tests_columns_can_be_read() -> None:
    """The first thirteen words of a row are those of nccl-tests, in its units."""
    row = next(line for line in format_table(MADE_UP, wide=True).splitlines() if " ring " in line).split()
    assert row[:5] == ["64", "16", "float", "sum", "-1"]
    assert row[5:9] == ["50.00", "0.00", "0.00", "3"]
    assert row[9:13] == ["300.0", "0.00", "0.00", "0"]


NARROW_TABLE = """\
# torchrun -m collectives.benchmark
# abacus, 2 cores, torch 2.13, OMP_NUM_THREADS=1, today

# all_reduce, 4 ranks, float32, sum
#                                       out-of-place                in-place
#     size  algorithm               time  busbw  ratio      time  busbw  ratio
#                                   (us) (GB/s)             (us) (GB/s)
      64 B  dist                   100.0   0.00   1.00     200.0   0.00   1.00
      64 B  ring                   50.00   0.00   0.50     300.0   0.00   1.50
    64 MiB  dist                  120000   0.84   1.00         -      -      -
    64 MiB  ring                   90000   1.12   0.75         -      -      -
    64 MiB  plain_ring             60000   1.68   0.50         -      -      -
# WRONG: ring, 64 B, out of place: 3 elements
# ring: geometric mean of the ratios 0.612 out of place, 1.500 in place
# plain_ring: geometric mean of the ratios 0.500 out of place

# all_gather, 4 ranks, bfloat16
#                                           in-place
#     size  algorithm               time  busbw  ratio
#                                   (us) (GB/s)
     4 KiB  dist                  1000.0   0.00   1.00
# ratio: the median time over that of dist (torch.distributed); below 1 is faster
"""


def test_the_narrow_table() -> None:
    """It fits a terminal of 80 columns, has no columns of what was not timed, and says what is wrong below."""
    assert format_table(MADE_UP) + "\n" == NARROW_TABLE
    assert max(map(len, NARROW_TABLE.splitlines()[:-1])) <= 80


NCCL_TESTS = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 64 maxBytes 67108864 step: 1048576(factor) warmup iters: 2 iters: 11 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid      0 on      host0 device  0 [0000:00:00] abacus
#  Rank  1 Group  0 Pid      0 on      host0 device  1 [0000:00:00] abacus
#  Rank  2 Group  0 Pid      0 on      host1 device  0 [0000:00:00] abacus
#  Rank  3 Group  0 Pid      0 on      host1 device  1 [0000:00:00] abacus
#
#
#                                                              out-of-place                       in-place          |
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong |
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         |
          64            16     float     sum      -1    50.00    0.00    0.00       0   300.00    0.00    0.00       0
    67108864      16777216     float     sum      -1  90000.0    0.75    1.12       0  1.2e+08    0.00    0.00       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.28039 |
#
# Collective test concluded: all_reduce_perf
"""  # noqa: E501


def nccl_tests_text() -> str:
    """What is printed of one algorithm, timed in both places."""
    timed = (
        times("dist", 64, 100e-6),
        times("ring", 64, 50e-6),
        times("ring", 64, 300e-6, in_place=True),
        times("ring", 67108864, 0.09),
        times("ring", 67108864, 120.0, in_place=True),
    )
    made_up = Measurements(4, {**WHERE, "machines": [0, 0, 0, 0], "hosts": [0, 0, 1, 1]}, collectives=timed)
    plan = BenchmarkPlan((Collective.ALL_REDUCE,), ("ring",), (64, 67108864))
    return format_nccl_tests(made_up, plan) + "\n"


def test_the_lines_of_nccl_tests() -> None:
    """As nccl-tests prints them, blanks at the ends of lines (before the bars here) included."""
    assert nccl_tests_text() == NCCL_TESTS.replace("|", "")


def test_our_own_reader_reads_them(tmp_path: Path) -> None:
    """The test, the ranks, the hosts and the times."""
    path = tmp_path / "log.txt"
    path.write_text(nccl_tests_text())
    (table,) = read_logs([path])
    assert (table.test, table.num_ranks, table.num_nodes, table.devices) == ("all_reduce", 4, 2, ("abacus",))
    assert [row.size_bytes for row in table.rows] == [64, 67108864]
    assert table.rows[0].times_s == pytest.approx((50e-6, 300e-6))
