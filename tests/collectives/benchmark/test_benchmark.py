"""The benchmark on real ranks: what is checked, what is timed, in which order."""

import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion

import collectives
from collectives.benchmark.case import DTYPES, BenchmarkCase, BenchmarkPlan, Buffers, elements_of, growing_sizes
from collectives.benchmark.job import MAX_IN_A_ROW, Run, call_of, measure, run_plan
from ringsim.measurements.measurements import CollectiveTimes
from ringsim.schedule.collective import Collective
from tests.ranks import RankPool
from tests.refusals import said_by

SMALL = BenchmarkPlan(tuple(Collective), (), (64, 1000), iterations=2, calls=1, warm_up=1)
ALL_REDUCE = replace(SMALL, collectives=(Collective.ALL_REDUCE,))
CASE = BenchmarkCase(Collective.ALL_REDUCE, 250, "float32", 2, in_place=False)


def planned(group: dist.ProcessGroup, plan: BenchmarkPlan) -> tuple[CollectiveTimes, ...]:
    """Return the measurements of a benchmark of `plan`."""
    return run_plan(plan, group).collectives


CASES = [(1, False, "float32"), (2, True, "float32"), *((3, False, dtype) for dtype in DTYPES)]


@pytest.mark.parametrize(("num_ranks", "shared", "dtype"), CASES)
def test_every_collective_is_timed_and_right(ranks: RankPool, num_ranks: int, shared: bool, dtype: str) -> None:
    """In and out of place, ours, torch's and a plain ring: nothing wrong, and the same on all ranks."""
    plan = replace(SMALL, plain_ring=True, shared=shared, dtype=dtype)
    results = ranks.run(planned, plan, num_ranks=num_ranks)
    assert all(result == results[0] for result in results)
    plain = [times.collective.value for times in results[0] if times.algorithm == "plain_ring"]
    assert plain == [name for name in ("all_reduce", "reduce_scatter", "all_gather") for _ in range(4)]
    assert len(results[0]) == (len(Collective) - 0.5) * 2 * 2 * 2 + len(plain)  # an all_to_all is never in place
    for times in results[0]:
        assert (times.wrong, len(times.times_s), times.num_ranks) == (0, 2, num_ranks)
        assert times.algorithm in ("dist", "plain_ring", "ring", "binomial_tree", "direct")
        assert times.median_s >= max(times.rank_medians_s)
        assert len(times.rank_medians_s) == num_ranks
    assert {times.in_place for times in results[0]} == {False, True}


def broken(group: dist.ProcessGroup, case: BenchmarkCase, fault: str) -> list[CollectiveTimes]:
    """The times of torch's collective and of a fake that spoils its result, on rank 1 only."""
    right = call_of(dist, case, group)

    def wrong(buffers: Buffers) -> None:
        if fault != "nothing done":
            right(buffers)
        if group.rank() == 1 and fault == "three elements":
            buffers.output[10:13] += 1
        if group.rank() == 1 and fault == "halves exchanged":
            half = len(buffers.output) // 2
            buffers.output.copy_(torch.cat([buffers.output[half:], buffers.output[:half]]))
        if group.rank() == 1 and fault == "counted twice":
            buffers.output.add_(buffers.data)

    return measure(case, {"dist": right, "fake": wrong}, SMALL, group)


@pytest.mark.parametrize(
    ("fault", "least", "most"),
    [("three elements", 3, 3), ("nothing done", 498, 500), ("halves exchanged", 240, 250), ("counted twice", 240, 250)],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_wrong_elements_are_counted(ranks: RankPool, fault: str, least: int, most: int, in_place: bool) -> None:
    """Over all ranks, and told of the one who did it; wherever it is that chunks or ranks were mistaken."""
    for right, fake in ranks.run(broken, replace(CASE, in_place=in_place), fault, num_ranks=2):
        assert right.wrong == 0
        assert least <= fake.wrong <= most


def three_in_turn(group: dist.ProcessGroup) -> tuple[list[CollectiveTimes], list[str]]:
    """The times of three implementations, and in which order they were called."""
    calls: list[str] = []

    def noting(name: str, run: Run) -> Run:
        return lambda buffers: (calls.append(name), run(buffers))

    runs = {"a": noting("a", call_of(dist, CASE, group))}
    for name, algorithm in (("b", "ring"), ("c", "direct")):
        runs[name] = noting(name, call_of(collectives, CASE, group, algorithm=algorithm))
    return measure(CASE, runs, replace(SMALL, iterations=4, warm_up=0), group), calls


def test_implementations_take_turns(ranks: RankPool) -> None:
    """Each is checked once, then every iteration begins with another; the positions say so."""
    for times, calls in ranks.run(three_in_turn, num_ranks=2):
        assert "".join(calls) == "abc" + "abc" + "bca" + "cab" + "abc"
        assert [each.positions for each in times] == [(0, 2, 1, 0), (1, 0, 2, 1), (2, 1, 0, 2)]


def test_calls_and_iterations_fit_the_time(ranks: RankPool) -> None:
    """As many calls in a row as take a few milliseconds, and at least five iterations, the same on all ranks."""
    plan = replace(ALL_REDUCE, calls=None, iterations=None, cell_time_s=1e-9)
    for result in ranks.run(planned, plan, num_ranks=2):
        assert {len(times.times_s) for times in result} == {5}
        assert all(1 <= times.calls <= MAX_IN_A_ROW for times in result)
        assert all(0 <= late < 1 for times in result for late in times.arrival_skew_s)
    assert all(times.calls == 7 for times in ranks.run(planned, replace(ALL_REDUCE, calls=7), num_ranks=2)[0])


def test_sizes() -> None:
    """They grow by the factor up to the end, and are rounded down to equal shares where each rank has one."""
    assert growing_sizes(64, 5000, 4) == (64, 256, 1024, 4096)
    assert elements_of(Collective.ALL_REDUCE, 64, "float32", 3) == 16
    assert elements_of(Collective.ALL_GATHER, 64, "float32", 3) == 15
    with pytest.raises(ValueError, match="sizes from 8 to 4 B"):
        growing_sizes(8, 4, 2)


WRONG = [
    (replace(ALL_REDUCE, algorithms=("spiral",)), 4),
    (replace(ALL_REDUCE, dtype="bfloat16"), 200),
    (replace(SMALL, sizes_bytes=(2**50,)), 4),
    (replace(ALL_REDUCE, sizes_bytes=(2,)), 4),
    (replace(SMALL, record=True), 1),
    (replace(ALL_REDUCE, algorithms=("direct",), record=True), 400),
]


def test_plans_that_cannot_be_are_refused(snapshot: SnapshotAssertion) -> None:
    """Before anything begins."""
    said = [said_by(ValueError, plan.check, num_ranks, num_ranks) for plan, num_ranks in WRONG]
    assert [re.sub("(all_reduce has|there is) .*", r"\1 SO MUCH", message) for message in said] == snapshot
