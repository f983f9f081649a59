"""Recorded runs on real ranks."""

from dataclasses import replace
from unittest import mock

import pytest
import torch.distributed as dist

from collectives.benchmark.case import BenchmarkPlan
from collectives.benchmark.job import run_plan
from collectives.benchmark.transfer_log import NUM_RUNS
from ringsim.calibration.comparison import compare_run
from ringsim.measurements import Measurements, RankHosts, RecordedRun
from ringsim.network.network import Network
from ringsim.registry import build
from ringsim.schedule.collective import Collective
from tests.ranks import RankPool
from tests.refusals import said_by

PLAN = BenchmarkPlan(
    (Collective.ALL_REDUCE, Collective.ALL_GATHER), ("ring", "direct"), (64, 120000), iterations=1, calls=1, warm_up=1,
    in_place=(True,), record=True,
)  # fmt: skip


def recorded(group: dist.ProcessGroup, plan: BenchmarkPlan) -> Measurements:
    """Return what a benchmark of `plan` finds."""
    return run_plan(plan, group)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_every_transfer_is_recorded_once(ranks: RankPool, num_ranks: int) -> None:
    """Of each collective and algorithm at the largest size, the same on all ranks, in an order that can be."""
    results = [result.runs for result in ranks.run(recorded, PLAN, num_ranks=num_ranks)]
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
    """Every collective; of all_reduce also Gloo's own ring, whose segments depend on the size, and "auto"."""
    plan = replace(
        PLAN, collectives=tuple(Collective), algorithms=("gloo_ring", "auto", "ring/4"), sizes_bytes=(2**20,)
    )
    (measured, *_) = ranks.run(recorded, plan, num_ranks=2)
    names = [run.algorithm for run in measured.runs if run.collective is Collective.ALL_REDUCE]
    assert names[0] == "gloo_ring"
    assert "ring/4" in names  # which may be what "auto" chose; it is recorded once then
    assert len(set(names)) == len(names)
    assert {run.collective for run in measured.runs} == set(Collective)
    for run in measured.runs:
        both = compare_run(run, Network.uniform(1e-5, 1e9))
        assert run.size_bytes == 2**20
        assert len(both.predicted.timeline) == len(run) > 0


def test_a_run_travels_as_the_timed_calls_do(ranks: RankPool) -> None:
    """And where its tensor would go in several portions, of which there is no timeline, a smaller is recorded."""
    plan = replace(PLAN, collectives=(Collective.ALL_REDUCE,), algorithms=("ring",), sizes_bytes=(64, 2**20, 2**25))
    (measured, *_) = ranks.run(recorded, plan, num_ranks=2)
    (run,) = measured.runs
    assert run.transport == measured.provenance["transport"] == "shm"
    assert run.size_bytes == 2**20
    (measured, *_) = ranks.run(recorded, replace(plan, sizes_bytes=(2**25,)), num_ranks=2)
    assert measured.runs == ()


def on_two_machines(group: dist.ProcessGroup) -> str:
    """Return how the recording of a run is refused where a rank is on another machine."""
    with mock.patch("collectives.benchmark.job.places_of", return_value=RankHosts((0, 1), (0, 1))):
        return said_by(ValueError, run_plan, PLAN, group)


def test_ranks_without_a_common_clock_record_nothing(ranks: RankPool) -> None:
    """On every rank, before anything begins."""
    told = "--record: the ranks are on several machines, which have no common clock: record on one"
    assert ranks.run(on_two_machines, num_ranks=2) == [told] * 2
