"""The targets of bench_collectives.py and their table, from made-up times."""

import pytest
from syrupy.assertion import SnapshotAssertion

from bench_collectives import TARGETS, format_targets, over_limit, ratios_of
from ringsim.measurements.measurements import Measurements
from tests.collectives.benchmark.test_benchmark_command import WHERE, times


def test_the_targets(snapshot: SnapshotAssertion) -> None:
    """For each number of ranks and for all, the mean and the worst cell; of several algorithms, also the best."""
    cells = {"dist": (1e-3, 8e-3), "ring": (4e-3, 2e-3), "direct": (2e-3, 32e-3)}
    four = Measurements(
        4, WHERE, collectives=[times(name, 64 << 14 * i, s) for name, both in cells.items() for i, s in enumerate(both)]
    )
    two = Measurements(2, WHERE, collectives=tuple(times(name, 64, 1e-3, **TWO) for name in ("dist", "ring", "direct")))
    assert format_targets([(TARGETS[2], [two, four])]) == snapshot


TWO = {"num_ranks": 2, "rank_medians_s": (1e-3, 1e-3)}


def test_a_plain_ring_is_a_rival() -> None:
    """Ratios are over its times where the target says so; without them there is nothing to say."""
    target = TARGETS[-1]
    both = times("ring", 2**26, 0.09), times("plain_ring", 2**26, 0.06)
    (ratio,) = ratios_of(target, [Measurements(4, WHERE, collectives=both)])
    assert (ratio.algorithm, ratio.num_ranks, ratio.size_bytes) == ("ring", 4, 2**26)
    assert ratio.value == pytest.approx(1.5)
    with pytest.raises(ValueError, match="all_reduce of 67108864 bytes: no times of plain_ring to compare with"):
        ratios_of(target, [Measurements(4, WHERE, collectives=both[:1])])


def test_large_sizes_are_compared_with_the_limit() -> None:
    """Only algorithms of this project, from 1 MiB on, and only where the limit was measured."""
    small = times("ring", 64, 4e-3), times("limit", 64, 1e-3)
    large = times("ring", 2**23, 12e-3), times("dist", 2**23, 9e-3), times("limit", 2**23, 8e-3)
    title, _, target, _, *rows = over_limit([
        (TARGETS[2], [Measurements(4, WHERE, collectives=(*small, *large))]),
        (TARGETS[-1], [Measurements(4, WHERE, collectives=small[:1])]),
    ]).splitlines()  # fmt: skip
    assert (title.split(":")[0], target) == ("# from 1 MiB", f"# {TARGETS[2].title}")
    assert [row.split() for row in rows] == [["4", "ring", "8", "MiB", "1.50"]]
