"""Recorded runs on real ranks, and the clocks that they are on."""

from dataclasses import replace

import pytest
import torch.distributed as dist

from collectives.benchmark.job import run_plan
from collectives.benchmark.plan import MAX_TRANSFERS, BenchmarkPlan
from collectives.benchmark.recorder import NUM_RUNS
from collectives.probes.hosts import Clock, ask_time, read_clock
from ringsim.calibration.compared_run import compare_run
from ringsim.measurements.measurements import Measurements
from ringsim.measurements.recorded_run import RecordedRun
from ringsim.network.network import Network
from ringsim.registry import build
from ringsim.schedule.collective import Collective
from tests.ranks import RankPool

PLAN = BenchmarkPlan(
    (Collective.ALL_REDUCE, Collective.ALL_GATHER), ("ring", "direct"), (64, 120000), iterations=1, calls=1, warm_up=1,
    in_place=(True,), record=True,
)  # fmt: skip


def measured_by(group: dist.ProcessGroup, plan: BenchmarkPlan) -> Measurements:
    """All that a benchmark of `plan` finds."""
    return run_plan(plan, group)


def recorded(group: dist.ProcessGroup, plan: BenchmarkPlan) -> tuple[RecordedRun, ...]:
    """Return the runs that a benchmark of `plan` records."""
    return run_plan(plan, group).runs


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_every_transfer_is_recorded_once(ranks: RankPool, num_ranks: int) -> None:
    """Of each collective and algorithm at the largest size, the same on all ranks, in an order that can be."""
    results = ranks.run(recorded, PLAN, num_ranks=num_ranks)
    assert all(result == results[0] for result in results)
    runs: tuple[RecordedRun, ...] = results[0]
    assert [(run.collective, run.algorithm) for run in runs] == [
        (collective, algorithm) for collective in PLAN.collectives for algorithm in PLAN.algorithms
    ]
    for run in runs:
        schedule = build(run.collective, run.algorithm, num_ranks, run.size_bytes)
        listed = [(index, *row[:3]) for index, step in enumerate(schedule.steps) for row in step]
        assert run.transfers == sorted(listed)
        assert (run.size_bytes, run.element_bytes, run.clock_error_s, len(run.runs_s)) == (120000, 4, 0.0, NUM_RUNS)
        assert all(issued <= applied for issued, applied in zip(run.issued_s, run.applied_s, strict=True))
        assert all(run.begin_s[src] <= issued for src, issued in zip(run.src, run.issued_s, strict=True))
        assert all(applied <= run.end_s[dst] for dst, applied in zip(run.dst, run.applied_s, strict=True))
        assert max(run.begin_s) == 0
        assert sorted(run.runs_s)[NUM_RUNS // 2] == pytest.approx(max(run.end_s))


def test_records_can_be_predicted(ranks: RankPool) -> None:
    """Gloo's own ring, whose segments depend on the size, what "auto" chose, and one size of its own."""
    plan = replace(
        PLAN, collectives=(Collective.ALL_REDUCE,), algorithms=("gloo_ring", "auto", "ring/4"), sizes_bytes=(64,)
    )
    (runs, *_) = ranks.run(recorded, replace(plan, record_bytes=2**20 * 4), num_ranks=2)
    names = [run.algorithm for run in runs]
    assert names[0] == "gloo_ring"
    assert "ring/4" in names  # which may be what "auto" chose; it is recorded once then
    assert len(set(names)) == len(names)
    for run in runs:
        both = compare_run(run, Network(1e-5, 1e9), "uniform")
        assert run.size_bytes == 2**20 * 4
        assert len(both.predicted) == len(run) > 0


def test_a_run_travels_as_the_timed_calls_do(ranks: RankPool) -> None:
    """And where its tensor would go in several portions, of which there is no timeline, a smaller is recorded."""
    plan = replace(PLAN, collectives=(Collective.ALL_REDUCE,), algorithms=("ring",), sizes_bytes=(64, 2**20))
    (measured, *_) = ranks.run(measured_by, replace(plan, record_bytes=2**25), num_ranks=2)
    (run,) = measured.runs
    assert run.transport == measured.provenance["transport"] == "shm"
    assert run.size_bytes == 2**20
    ((halved, *_), *_) = ranks.run(recorded, replace(plan, record_bytes=2**25, sizes_bytes=(2**25,)), num_ranks=2)
    assert 2**20 < halved.size_bytes < 2**25
    assert 2**25 % halved.size_bytes == 0


def test_nothing_is_recorded_unasked(ranks: RankPool) -> None:
    """It takes time."""
    (runs, *_) = ranks.run(recorded, replace(PLAN, record=False), num_ranks=2)
    assert runs == ()


@pytest.mark.parametrize(
    ("changes", "num_ranks", "message"),
    [
        ({"record": False, "record_bytes": 64}, 2, "--record-size: nothing is recorded: also give --record"),
        ({}, 1, "--record: needs at least 2 ranks; 1 has nothing to send"),
        ({"record_bytes": 2}, 2, "size 2 B: all_reduce of float32 on 2 ranks needs at least 4"),
        (
            {"algorithms": ("direct",)},
            400,
            f"--record: a run of at most {MAX_TRANSFERS:,} transfers; all_reduce direct",
        ),
    ],
)
def test_plans_that_cannot_be_recorded(changes: dict, num_ranks: int, message: str) -> None:
    """Are refused before anything begins."""
    with pytest.raises(ValueError, match=message):
        replace(PLAN, **{"collectives": (Collective.ALL_REDUCE,), **changes}).check(num_ranks, num_ranks)


def asked(group: dist.ProcessGroup) -> tuple[tuple[float, float] | None, Clock, Clock]:
    """Return the clock of rank 1 by asking; and the clocks on one machine, and with ranks 1 and 2 on another."""
    return ask_time(group, 1), read_clock(group, [0, 0, 0]), read_clock(group, [0, 1, 1])


def test_clocks_of_one_machine_are_found_to_be_one(ranks: RankPool) -> None:
    """By asking, within the error that is said; without asking, exactly."""
    results = ranks.run(asked, num_ranks=3)
    assert [result[0] is None for result in results] == [True, False, True]
    ahead, error = results[1][0]
    assert abs(ahead) <= error
    for _, same, other in results:
        assert same == Clock((0.0,) * 3, (0.0,) * 3)
        assert same.pair_error_s == 0
        assert other.ahead_s[0] == other.error_s[0] == 0
        assert other.ahead_s[1] == other.ahead_s[2]
        assert abs(other.ahead_s[1]) <= other.error_s[1] == other.pair_error_s
    assert results[0][2] == results[1][2] == results[2][2]


def test_clocks_that_drift_apart() -> None:
    """Between two readings a clock is somewhere between them."""
    clock = Clock.between(Clock((0.0, 1.0, 3.0), (0.0, 0.1, 0.2)), Clock((0.0, 1.5, 3.0), (0.0, 0.2, 0.1)))
    assert clock.ahead_s == (0.0, 1.25, 3.0)
    assert clock.error_s == pytest.approx((0.0, 0.45, 0.2))
    assert clock.pair_error_s == pytest.approx(0.65)
