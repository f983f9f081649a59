"""The tables of the benchmark, from made-up times, to the letter."""

from dataclasses import replace
from pathlib import Path

import pytest

from collectives.benchmark.nccl_format import format_nccl_tests
from collectives.benchmark.plan import BenchmarkPlan
from collectives.benchmark.table import format_table
from ringsim.measurements.logs.reader import read_logs
from ringsim.measurements.measurements import CollectiveTimes, Measurements
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

# all_reduce, 4 ranks, float32, sum
  size  algorithm   in place    time      busbw  ratio
  64 B  dist        no        100 us   960 kB/s   1.00
  64 B  ring        no         50 us  1.92 MB/s   0.50
  64 B  dist        yes       200 us   480 kB/s   1.00
  64 B  ring        yes       300 us   320 kB/s   1.50
64 MiB  dist        no        120 ms   839 MB/s   1.00
64 MiB  ring        no         90 ms  1.12 GB/s   0.75
64 MiB  plain_ring  no         60 ms  1.68 GB/s   0.50
# WRONG: ring, 64 B, out of place: 3 elements
# ring: geometric mean of the ratios 0.612 out of place, 1.500 in place
# plain_ring: geometric mean of the ratios 0.500 out of place

# all_gather, 4 ranks, bfloat16
 size  algorithm  in place  time      busbw  ratio
4 KiB  dist       yes       1 ms  3.07 MB/s   1.00
# ratio: the median time over that of dist (torch.distributed); below 1 is faster
"""


def test_the_table() -> None:
    """It fits a terminal of 80 columns, and says what is wrong below."""
    assert format_table(MADE_UP) + "\n" == TABLE


WIDE_ROWS = """\
  size  algorithm   in place    time      busbw  ratio     10%     90%      algbw  wrong
  64 B  dist        no        100 us   960 kB/s   1.00   60 us  140 us   640 kB/s      0
  64 B  ring        no         50 us  1.92 MB/s   0.50   30 us   70 us  1.28 MB/s      3
"""


def test_the_wide_table() -> None:
    """How far apart the times were, too; a result that was not looked at has no number of wrong elements."""
    table = format_table(MADE_UP, wide=True)
    assert WIDE_ROWS in table
    assert table.count("plain_ring  no         60 ms  1.68 GB/s   0.50   36 ms   84 ms  1.12 GB/s      -\n") == 1


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
    """Return the lines that are printed for one algorithm, timed in place and out of place."""
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
