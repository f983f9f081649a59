"""The benchmark on real ranks: what is checked, what is timed, in which order."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from collectives.benchmark.case import DTYPES, BenchmarkCase, Buffers, elements_of, pattern
from collectives.benchmark.implementation import Implementation, native, ours
from collectives.benchmark.job import MAX_IN_A_ROW, measure, run_plan
from collectives.benchmark.plan import BenchmarkPlan, growing_sizes
from ringsim.measurements.measurements import CollectiveTimes
from ringsim.schedule.collective import Collective
from tests.ranks import RankPool

SMALL = BenchmarkPlan(tuple(Collective), (), (64, 1000), iterations=2, calls=1, warm_up=1)
CASE = BenchmarkCase(Collective.ALL_REDUCE, 250, "float32", "sum", 2, in_place=False)


def planned(group: dist.ProcessGroup, plan: BenchmarkPlan) -> tuple[CollectiveTimes, ...]:
    """Return the measurements of a benchmark of `plan`."""
    return run_plan(plan, group).collectives


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_every_collective_is_timed_and_right(ranks: RankPool, num_ranks: int) -> None:
    """In and out of place, ours and torch's: nothing wrong, as many times as asked for, the same on all ranks."""
    results = ranks.run(planned, SMALL, num_ranks=num_ranks)
    assert all(result == results[0] for result in results)
    assert len(results[0]) == (len(Collective) - 0.5) * 2 * 2 * 2  # an all_to_all is never in place
    for times in results[0]:
        assert (times.wrong, len(times.times_s), times.num_ranks) == (0, 2, num_ranks)
        assert times.algorithm in ("dist", "ring", "binomial_tree", "direct")
    assert {times.in_place for times in results[0]} == {False, True}


def test_tensors_that_stay_where_they_are(ranks: RankPool) -> None:
    """All collectives on tensors that ranks share, with nothing wrong."""
    results = ranks.run(planned, replace(SMALL, shared=True), num_ranks=3)
    assert {times.wrong for result in results for times in result} == {0}


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max", "band", "bor", "bxor"])
def test_every_dtype_has_exact_data(ranks: RankPool, op: str) -> None:
    """Also those with few digits: ours and torch's have no element wrong, on three ranks."""
    for dtype, kind in DTYPES.items():
        if (op == "avg" and not kind.is_floating_point) or (op.startswith("b") and kind.is_floating_point):
            continue
        plan = replace(SMALL, collectives=(Collective.ALL_REDUCE,), dtype=dtype, op=op, iterations=1, warm_up=0)
        (first, *_) = ranks.run(planned, plan, num_ranks=3)
        assert [times.wrong for times in first] == [0] * 8, dtype


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_plain_ring_takes_part(ranks: RankPool, num_ranks: int) -> None:
    """In the three collectives that it knows, in and out of place, with nothing wrong."""
    (first, *_) = ranks.run(planned, replace(SMALL, plain_ring=True), num_ranks=num_ranks)
    plain = [times for times in first if times.algorithm == "plain_ring"]
    assert {times.collective.value for times in plain} == {"all_reduce", "reduce_scatter", "all_gather"}
    assert [times.wrong for times in plain] == [0] * 12


def broken(group: dist.ProcessGroup, case: BenchmarkCase, fault: str) -> list[CollectiveTimes]:
    """The times of torch's collective and of a fake that spoils its result, on rank 1 only."""
    right = native(case, group)

    def wrong(buffers: Buffers) -> None:
        if fault != "nothing done":
            right.run(buffers)
        if group.rank() == 1 and fault == "three elements":
            buffers.output[10:13] += 1
        if group.rank() == 1 and fault == "halves exchanged":
            half = len(buffers.output) // 2
            buffers.output.copy_(torch.cat([buffers.output[half:], buffers.output[:half]]))
        if group.rank() == 1 and fault == "counted twice":
            buffers.output.add_(buffers.data)

    return list(measure(case, [right, Implementation("fake", wrong)], SMALL, group))


@pytest.mark.parametrize(
    ("fault", "least", "most"),
    [
        ("three elements", 3, 3),
        ("nothing done", 2 * 249, 2 * 250),
        ("halves exchanged", 240, 250),
        ("counted twice", 240, 250),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_wrong_elements_are_counted(ranks: RankPool, fault: str, least: int, most: int, in_place: bool) -> None:
    """Over all ranks, and told of the one who did it; wherever it is that chunks or ranks were mistaken."""
    for right, fake in ranks.run(broken, replace(CASE, in_place=in_place), fault, num_ranks=2):
        assert right.wrong == 0
        assert fake.wrong is not None
        assert least <= fake.wrong <= most


def three_in_turn(group: dist.ProcessGroup) -> tuple[list[CollectiveTimes], list[str]]:
    """The times of three implementations, and in which order they were called."""
    calls: list[str] = []

    def noting(implementation: Implementation, name: str) -> Implementation:
        return Implementation(name, lambda buffers: (calls.append(name), implementation.run(buffers)))

    implementations = [noting(native(CASE, group), "a"), noting(ours(CASE, "ring", group), "b")]
    implementations.append(noting(ours(CASE, "direct", group), "c"))
    return list(measure(CASE, implementations, replace(SMALL, iterations=4, warm_up=0), group)), calls


def test_implementations_take_turns(ranks: RankPool) -> None:
    """Each is checked once, then every iteration begins with another; the positions say so."""
    for times, calls in ranks.run(three_in_turn, num_ranks=2):
        assert "".join(calls) == "abc" + "abc" + "bca" + "cab" + "abc"
        assert [each.positions for each in times] == [(0, 2, 1, 0), (1, 0, 2, 1), (2, 1, 0, 2)]


def test_the_slowest_rank_counts(ranks: RankPool) -> None:
    """The time of a case is no less than any rank's median, and there is one median for each rank."""
    for times in ranks.run(three_in_turn, num_ranks=2)[0][0]:
        assert times.median_s >= max(times.rank_medians_s)
        assert len(times.rank_medians_s) == 2


def test_calls_in_a_row(ranks: RankPool) -> None:
    """As many as asked for, or as take a few milliseconds; the mean counts."""
    plan = replace(SMALL, collectives=(Collective.ALL_REDUCE,), algorithms=("ring",))
    for calls, expected in ((None, range(1, MAX_IN_A_ROW + 1)), (7, [7])):
        (result, *_) = ranks.run(planned, replace(plan, calls=calls), num_ranks=2)
        assert all(times.calls in expected for times in result)
        assert all(0 <= late < 1 for times in result for late in times.arrival_skew_s)


def test_iterations_fit_the_time(ranks: RankPool) -> None:
    """Without a number, at least five, and the same on all ranks."""
    plan = replace(SMALL, collectives=(Collective.ALL_REDUCE,), iterations=None, cell_time_s=1e-9)
    for result in ranks.run(planned, plan, num_ranks=2):
        assert {len(times.times_s) for times in result} == {5}


def test_no_result_looks_untouched() -> None:
    """No result of a collective holds the value that buffers are filled with to catch ranks that do nothing."""
    for dtype in DTYPES:
        for op in ("sum", "min", "max", "prod"):
            case = BenchmarkCase(Collective.ALL_REDUCE, 70000, dtype, op, 3, in_place=False)
            data = pattern(case, seed=0)
            buffers = Buffers.of(data, rank=0)
            buffers.spoil()
            assert data.count_wrong(0, buffers.output) == 70000, (dtype, op)


def test_data_follows_the_seed() -> None:
    """The same seed gives the same, another other; and ranks have different data."""
    first, again, other = (pattern(CASE, seed) for seed in (3, 3, 4))
    assert torch.equal(first.given(1), again.given(1))
    assert not torch.equal(first.given(1), other.given(1))
    assert not torch.equal(first.given(0), first.given(1))


def test_sums_that_are_rounded_are_refused() -> None:
    """Of so many ranks that not even zeros and ones have an exact sum."""
    with pytest.raises(
        ValueError, match="dtype bfloat16: sums of 200 ranks cannot all be exact: choose a larger dtype"
    ):
        pattern(replace(CASE, dtype="bfloat16", num_ranks=200), seed=0)


def test_sizes() -> None:
    """They grow by the factor up to the end, and are rounded down to equal shares where each rank has one."""
    assert growing_sizes(64, 5000, 4) == (64, 256, 1024, 4096)
    assert elements_of(Collective.ALL_REDUCE, 64, "float32", 3) == 16
    assert elements_of(Collective.ALL_GATHER, 64, "float32", 3) == 15
    with pytest.raises(ValueError, match="sizes from 8 to 4 B"):
        growing_sizes(8, 4, 2)
    with pytest.raises(ValueError, match="size 8 B: reduce_scatter of float32 on 3 ranks needs at least 12; begin"):
        elements_of(Collective.REDUCE_SCATTER, 8, "float32", 3)


def test_plans_that_cannot_be_are_refused() -> None:
    """An algorithm that the collective has not, bits of real numbers, no memory."""
    with pytest.raises(ValueError, match="algorithm 'torus': reduce_scatter has ring"):
        BenchmarkPlan((Collective.REDUCE_SCATTER,), ("torus",), (64,)).check(4, 4)
    with pytest.raises(ValueError, match="op BAND: needs integers or bool"):
        BenchmarkPlan((Collective.REDUCE,), (), (64,), dtype="float32", op="band").check(4, 4)
    with pytest.raises(ValueError, match="on 4 ranks: would take .* of memory"):
        BenchmarkPlan((Collective.ALL_REDUCE,), (), (2**50,)).check(4, 4)
