"""The tables of the benchmark, from made-up times, to the letter."""

from dataclasses import replace

from collectives.benchmark.table import format_table
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


WIDE_ROWS = """\
  size  algorithm   in place    time      busbw  ratio     10%     90%      algbw  wrong
  64 B  dist        no        100 us   960 kB/s   1.00   60 us  140 us   640 kB/s      0
  64 B  ring        no         50 us  1.92 MB/s   0.50   30 us   70 us  1.28 MB/s      3
"""


def test_the_table() -> None:
    """It fits a terminal of 80 columns, and says what is wrong below; the wide one also says how times vary."""
    assert format_table(MADE_UP) + "\n" == TABLE
    wide = format_table(MADE_UP, wide=True)
    assert WIDE_ROWS in wide
    # A result that was not looked at has no number of wrong elements.
    assert wide.count("plain_ring  no         60 ms  1.68 GB/s   0.50   36 ms   84 ms  1.12 GB/s      -\n") == 1
