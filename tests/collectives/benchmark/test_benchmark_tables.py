"""The tables of the benchmark, from made-up times, to the letter."""

from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from collectives.benchmark.table import format_table
from ringsim.measurements.measurements import CollectiveTimes, Measurements
from ringsim.schedule.collective import Collective

WHERE = {
    "command": "torchrun -m collectives.benchmark", "machine": "abacus", "cores": 2, "torch": "2.13",
    "OMP_NUM_THREADS": "1", "date": "today",
}  # fmt: skip


def times(algorithm: str, size_bytes: int, median_s: float, **more: object) -> CollectiveTimes:
    """Eleven iterations around the median."""
    times_s = tuple(median_s * (0.5 + 0.1 * step) for step in range(11))
    found = CollectiveTimes(
        Collective.ALL_REDUCE, algorithm, size_bytes, "float32", "sum", num_ranks=4, in_place=False, wrong=0, calls=1,
        times_s=times_s, arrival_skew_s=(0.0,) * 11, positions=(0,) * 11, rank_medians_s=(median_s,) * 4,
    )  # fmt: skip
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


def test_the_table(snapshot: SnapshotAssertion) -> None:
    """It fits a terminal of 80 columns, and says what is wrong below; the wide one also says how times vary.

    A result that was not looked at has no number of wrong elements.
    """
    table = format_table(MADE_UP)
    assert all(len(line) < 80 for line in table.splitlines() if not line.startswith("#"))
    assert table == snapshot
    assert format_table(MADE_UP, wide=True) == snapshot
