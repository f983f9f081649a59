"""The timeline of a traced step: what overlaps, and what is waited for, on a CPU and on a GPU."""

import math
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from ringsim.gpus import Roofline, load_gpu
from ringsim.libraries import LIBRARIES, Library
from ringsim.network import Network, load_network
from ringsim.network.spec import Failure, Processor
from ringsim.traces import Group, Operator, TraceCall, TracedStep, TraceEvent
from ringsim.training_step import Computing, StepSimulation, fitted_scale, pace_together, predict_trace
from ringsim.training_step.group_calls import GroupCalls, PlannedCall, mirrored_groups
from ringsim.training_step.outlook import with_better_steps
from ringsim.training_step.simulate_step import MeanStep, StepTimeline, simulate_step
from tests.ringsim.traces.made_trace import ALL, all_reduce, call, call_of, compute, read, traced, wait

SECOND = Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0)  # an all-reduce of 4 bytes on 2 ranks takes 4 s
TWO = Group((0, 1), "gloo")
ONE_AFTER_ANOTHER, TWO_AT_ONCE = LIBRARIES["ring"], LIBRARIES["gloo"]


def waiting(share: float) -> Network:
    """A network on which a share of the calls of torch.distributed takes 7 s longer."""
    return SECOND.with_spec(processor=Processor(torch_late_share=share, torch_late_s=7.0))


def timeline_of(
    step: TracedStep, *, on_gpu: bool = False, pace: float = 1.0, backend: Library = ONE_AFTER_ANOTHER
) -> StepTimeline:
    """On two ranks that send a byte a second."""
    groups = [GroupCalls(SECOND, 2, backend), GroupCalls(SECOND, 2, backend)]
    return simulate_step(step, groups, lambda event, _: event.seconds, on_gpu=on_gpu, pace=pace)


def spans_of(timeline: StepTimeline) -> list[tuple[float, float]]:
    """When each call begins and ends."""
    return [(span.begin_s, span.end_s) for span in timeline.calls]


def aside(size_bytes: int, after: int | None, group: int = 0, after_calls: tuple[int, ...] = ()) -> TraceCall:
    """A call on its own stream, which waits for the events up to `after`."""
    return replace(all_reduce(size_bytes, group=group), on_side_stream=True, after=after, after_calls=after_calls)


BOTH = all_reduce(4, True), all_reduce(4, True)
FSDP2 = call(0), read(0), compute(3.0), call(1), read(1), compute(1.0), compute(2.0), call(2), compute(5.0)
HSDP = compute(1.0), call(0), call(1), compute(2.0)
WAITING = compute(1.0), call(0), compute(2.0), call(1), compute(3.0), wait(1), compute(1.0)
SHARING = compute(1.0), call(0), compute(3.0), wait(0), compute(2.0), call(1), compute(6.0), wait(1)
READING = compute(1.0), call(0), compute(9.0), call(1), compute(1.0), read(0), compute(1.0)
TWO_CALLS, ON_GPU, AT_ONCE = (call(0), call(1), compute(1.0)), {"on_gpu": True}, {"backend": TWO_AT_ONCE}
STEPS: dict[str, tuple[tuple[TraceEvent, ...], tuple[TraceCall, ...], dict[str, Any]]] = {
    "on a CPU": (WAITING, (all_reduce(4), all_reduce(8, True)), {}),
    "on a core that a call shares": (SHARING, BOTH, {"pace": 0.5}),  # each is half as fast while both are at work
    "on a GPU": (READING, (all_reduce(4, True), all_reduce(4)), ON_GPU),
    "FSDP2": (FSDP2, (aside(4, -1), aside(4, -1), aside(4, 6)), ON_GPU),  # gathers come while a layer is computed
    "FSDP2 if nobody knows what its streams wait for": (FSDP2, (aside(4, None),) * 3, ON_GPU),
    "FSDP2 whose last stream waits for a call": (FSDP2, (aside(4, -1), aside(4, -1), aside(4, 3)), ON_GPU),
    "streams of two groups": (HSDP, (aside(4, 0), aside(8, 0, 1)), ON_GPU),
    "HSDP": (HSDP, (aside(4, 0), aside(8, 0, 1, (0,))), ON_GPU),  # reduces what the first stream has scattered
    "a group and another": ((*TWO_CALLS, call(2)), (*BOTH, all_reduce(4, True, 1)), {}),  # nobody waits for them
    "two calls at once": (TWO_CALLS, BOTH, AT_ONCE),
    "two calls at once of two groups": (TWO_CALLS, (all_reduce(4, True), all_reduce(4, True, 1)), AT_ONCE),
    "a call after another": ((call(0), wait(0), call(1), wait(1)), BOTH, AT_ONCE),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_overlaps_and_what_is_waited_for(name: str, snapshot: SnapshotAssertion) -> None:
    """A computation takes its seconds, an all_reduce of m bytes m seconds; the step is over when all calls are."""
    events, calls, options = STEPS[name]
    timeline = timeline_of(TracedStep(events, calls), **options)
    spans = [(f"call {index}", *span) for index, span in enumerate(spans_of(timeline))]
    spans += [(f"computing of event {event}", begin_s, end_s) for event, begin_s, end_s in timeline.computations]
    spans += [(f"waiting for call {index}", begin_s, end_s) for index, begin_s, end_s in timeline.waits]
    totals = [f"{name} {getattr(timeline, name):g}" for name in MeanStep._fields]
    totals.append(f"exposed by call {timeline.exposed_by_call()}")
    assert [f"{name}: {begin_s:g} to {end_s:g}" for name, begin_s, end_s in spans] + totals == snapshot


@pytest.mark.parametrize(
    ("cores", "num_ranks", "pace"), [(None, 9, 1.0), (8, 4, 1.0), (9, 4, 1.0), (6, 4, 0.75), (4, 4, 0.5), (2, 4, 0.5)]
)
def test_the_pace_follows_from_the_cores_of_a_rank(cores: int | None, num_ranks: int, pace: float) -> None:
    """Two are enough; one or fewer is divided between both threads."""
    assert pace_together(cores, num_ranks) == pace


class OneChannel(GroupCalls):
    """Calls with one channel."""

    def call(self, *values: Any, **options: Any) -> PlannedCall:
        """With its channel."""
        return super().call(*values, **options)._replace(channels=1)


@pytest.mark.parametrize(
    ("events", "made", "span", "step_s"),
    [
        # Until the call is over, which takes 4 s, a computation gets on half as fast.
        ((compute(1.0), call(0), compute(2.0)), all_reduce(4, True), (1.0, 5.0), 5.0),
        ((compute(1.0), call(0), compute(3.0)), all_reduce(4, True), (1.0, 5.0), 6.0),
        # It begins while what the program gave to the other stream before it is computed.
        ((compute(1.0), compute(8.0), call(0)), replace(all_reduce(4), on_side_stream=True, after=0), (1.0, 5.0), 11.0),
        # The computations wait for it.
        ((call(0), compute(3.0)), all_reduce(4), (0.0, 4.0), 7.0),
    ],
)
def test_busy_channels(
    events: tuple[TraceEvent, ...], made: TraceCall, span: tuple[float, float], step_s: float
) -> None:
    """Here two times as slow with one channel; what was slower is told."""
    group = OneChannel(SECOND, 2, ONE_AFTER_ANOTHER)
    step = TracedStep(events, (made,))
    timeline = simulate_step(step, [group], lambda event, occupied: event.seconds * (1 + occupied), on_gpu=True)
    assert spans_of(timeline) == [span]
    assert timeline.step_s == step_s
    assert timeline.slowed_s == timeline.compute_s - step.compute_s


@pytest.mark.parametrize(("share", "calls_per_step"), [(0.25, 1), (0.1, 10), (0.1, 13), (0.1, 21), (0.0, 10)])
def test_a_share_of_the_calls_waits_for_a_core(share: float, calls_per_step: int) -> None:
    """Of the calls of all steps together, and of each call; no step has many more of them than another.

    So that a call that nothing hides is typically not late, however many others there are and few the steps.
    """
    step = TracedStep(tuple(call(index) for index in range(calls_per_step)), (all_reduce(4),) * calls_per_step)
    trace = replace(traced(*[step] * 100, groups=(TWO,)), num_ranks=2)
    timelines = predict_trace(trace, waiting(share)).timelines
    late = np.array([[span.under_way_s > 7.0 for span in timeline.calls] for timeline in timelines])
    assert late.sum() == pytest.approx(100 * share * calls_per_step, abs=1)
    assert late.sum(axis=1).max() <= math.ceil(share * calls_per_step) + 1
    assert late.sum(axis=0) == pytest.approx(100 * share, abs=2)
    silent = TracedStep((compute(1.0),), ())  # moves no late calls
    others = predict_trace(replace(trace, steps=(*[silent] * 7, step) * 20), waiting(share)).steps_s[7::8]
    assert others == tuple(timeline.step_s for timeline in timelines[:20])
    assert predict_trace(trace, waiting(share), Computing(on_gpu=True)).steps_s == (4.0 * calls_per_step,) * 100
    alone = GroupCalls(waiting(share), 1, TWO_AT_ONCE)
    assert simulate_step(step, [alone], lambda *_: 0.0).step_s == 0.0


def test_what_would_be_better_has_the_same_late_calls() -> None:
    """In each step, which may have others than the first one; the mean counts."""
    step = TracedStep((compute(1.0), call(0), call(1), call(2)), (all_reduce(4),) * 3)
    prediction = predict_trace(replace(traced(step, step, groups=(TWO,)), num_ranks=2), waiting(0.15))
    assert (prediction.steps_s, prediction.timeline.step_s, prediction.mean.step_s) == ((20.0, 13.0), 13.0, 16.5)
    better = dict(with_better_steps(prediction).better)
    assert (better["twice the bandwidth of all links"], better["computations twice as fast"]) == (10.5, 16.0)


@pytest.mark.parametrize("backend", [ONE_AFTER_ANOTHER, TWO_AT_ONCE])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_step_that_never_ends_has_no_time_that_is_no_number(backend: Library, on_gpu: bool) -> None:
    """After the wait that does not end nothing is computed."""
    network = SECOND.with_spec(failures=(Failure(rank=1, at_s=6.0),))
    events = call(0), compute(3.0), call(1), compute(1.0), call(2), call(3), compute(1.0), wait(2), wait(3)
    calls = all_reduce(4), all_reduce(4), all_reduce(4, True), all_reduce(4, True)
    step = TracedStep(events, calls)
    timeline = simulate_step(step, [GroupCalls(network, 2, backend)], lambda event, _: event.seconds, on_gpu=on_gpu)
    assert (timeline.step_s, timeline.compute_s, timeline.exposed_s) == (np.inf, 3.0, np.inf)
    # The failure is that long after the start of the step, not of the call.
    assert [span.end_s for span in timeline.calls] == [4.0, np.inf, np.inf, np.inf]
    assert [span.under_way_s for span in timeline.calls] == [4.0, np.inf, 0.0, 0.0]
    assert timeline.exposed_by_call() == [4.0, np.inf, 0.0, 0.0]
    with pytest.raises(
        ValueError, match="^the communication never ends on this network, because a rank or link fails in it$"
    ):
        fitted_scale(StepSimulation(replace(traced(step, groups=(TWO,)), num_ranks=2), network), 30.0)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50), st.booleans(), st.integers(0, 1)), min_size=1, max_size=8),
    st.booleans(),
    st.sampled_from([1.0, 0.75, 0.5]),
    st.sampled_from([ONE_AFTER_ANOTHER, TWO_AT_ONCE]),
)
def test_steps_add_up(parts: list[tuple[float, int, bool, int]], on_gpu: bool, pace: float, backend: Library) -> None:
    """Whatever it does: nothing is computed during a wait, and the step is neither too short nor too long."""
    if on_gpu:
        backend = ONE_AFTER_ANOTHER
    events, calls = [], []
    for index, (seconds, elements, is_async, group) in enumerate(parts):
        events += [compute(seconds), call(index)]
        calls.append(all_reduce(4 * elements, is_async, group))
    events += [wait(index) for index, made in enumerate(calls) if made.is_async]
    timeline = timeline_of(TracedStep(tuple(events), tuple(calls)), on_gpu=on_gpu, pace=pace, backend=backend)
    alone_s = [4.0 * elements for _, elements, *_ in parts]
    compute_s = sum(seconds for seconds, *_ in parts)
    assert timeline.compute_s - timeline.slowed_s == pytest.approx(compute_s)
    assert max(compute_s, *alone_s) <= timeline.step_s * (1 + 1e-9)
    assert timeline.step_s <= (compute_s + sum(alone_s)) * (1 + 1e-9)
    assert sum(timeline.exposed_by_call()) == pytest.approx(timeline.exposed_s)
    busy = sorted([(begin_s, end_s) for _, begin_s, end_s in (*timeline.computations, *timeline.waits)])
    assert all(end_s <= next_s + 1e-9 for (_, end_s), (next_s, _) in pairwise(busy))
    for span, alone in zip(timeline.calls, alone_s, strict=True):
        assert 0 <= span.ready_s <= span.begin_s + 1e-9
        assert span.end_s - span.begin_s >= alone * (1 - 1e-9)


@pytest.mark.parametrize(
    ("ranks", "num_ranks", "groups"),
    [
        ((0, 1), 4, [[0, 1], [2, 3]]),
        ((1, 3), 4, [[1, 3], [0, 2]]),
        ((5, 7), 8, [[5, 7], [0, 2], [1, 3], [4, 6]]),
        ((0, 1, 2), 3, [[0, 1, 2]]),
        ((1, 2), 4, [[1, 2]]),  # not as the others would be divided
        ((0, 1), 3, [[0, 1]]),
        ((0, 3, 4), 6, [[0, 3, 4]]),
        ((2,), 4, [[2], [0], [1], [3]]),
    ],
)
def test_the_groups_of_other_ranks(ranks: tuple[int, ...], num_ranks: int, groups: list[list[int]]) -> None:
    """Those that divide the other ranks as a group divides its own, which comes first."""
    made = mirrored_groups(ranks, num_ranks).tolist()
    assert made[0] == groups[0]
    assert sorted(made) == sorted(groups)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_mirrored_groups_share_nics(backend: str) -> None:
    """Eight groups across the hosts are as slow as one with an eighth of the NICs, and need no more if each has one."""
    network = load_network("dgx-h100-cluster")

    def time_s(ranks: tuple[int, ...], on: Network) -> float:
        group = GroupCalls(on, 32, LIBRARIES[backend], ranks)
        return group.alone_s(group.call(call_of("all_reduce", 2**28, 4)))

    nics = network.spec.host.nics
    one_nic = network.with_spec(host=replace(network.spec.host, nics=replace(nics, count=1)))
    across = tuple(range(3, 32, 8))
    assert 7 < time_s(across, one_nic) / time_s(across, network) < 8.5
    # A group that no other mirrors has all NICs for itself.
    assert time_s((0, 8, 24), network) == pytest.approx(time_s((0, 8, 24), one_nic), rel=0.01)


def test_nccl_chooses_for_the_ranks_of_a_group() -> None:
    """By how many of them each host has: a switch is within a host only, and some hosts are not full."""
    groups = {"all": range(64), "host": range(8), "rail": range(0, 64, 8), "odd": (0, 1, 8)}
    made = {
        name: GroupCalls(load_network("dgx-h100-cluster"), 64, LIBRARIES["nccl"], on) for name, on in groups.items()
    }
    planned = {name: group.call(call_of("all_reduce", 2**26, 2)) for name, group in made.items()}
    assert {name: (plan.call.schedule.algorithm, plan.protocol) for name, plan in planned.items()} == {
        "all": ("nvls", "Simple"), "host": ("nvls", "Simple"), "rail": ("nccl_ring", "Simple"),
        "odd": ("nccl_tree", "LL128"),
    }  # fmt: skip
    assert not any(group.why_not for group in made.values())


def test_a_roofline_times_operators() -> None:
    """By their arithmetic or their memory, whichever takes longer; a step of calls alone has none."""
    large, small = Operator("aten.mm", "bfloat16", 989_400_000_000, 8), Operator("aten.add", "float32", 1, 3_350_000, 5)
    step = TracedStep((compute(0.0, large, small, Operator("aten.mm", "tf32", 494_700_000, 8)),), ())
    roofline = load_gpu("h100").roofline
    prediction = predict_trace(traced(step), SECOND, Computing(on_gpu=True, rates=roofline, scale=2.0))
    assert prediction.timeline.step_s == pytest.approx(2 * (1e-3 + 5e-6 + 1e-6))
    assert Roofline({"bits8": 1e12}, 1e12).seconds(compute(0.0, large)) == pytest.approx(0.9894)
    with pytest.raises(ValueError, match="the operators of the computations were not recorded"):
        predict_trace(traced(TracedStep((compute(1.0),), ())), SECOND, Computing(rates=roofline))
    calls_alone = traced(TracedStep((call(0),), (all_reduce(8),)))
    times_s = [predict_trace(calls_alone, SECOND, Computing(True, rates)).mean.step_s for rates in (None, roofline)]
    assert times_s[0] == times_s[1] > 0.0


@pytest.mark.parametrize(("cores", "scale"), [(None, 1.0), (4, 1.0), (8, 1.0), (2, 2.0), (1, 4.0)])
def test_ranks_without_a_core_of_their_own_compute_longer(cores: int | None, scale: float) -> None:
    """By the ranks for each core, as the program was recorded alone; not by a roofline, nor on a GPU."""
    host = load_network("gbe").spec.host
    network = SECOND.with_spec(host=replace(host, cores=cores))
    trace = traced(TracedStep((compute(3.0, Operator("aten.mm", "float32", 1, 1)),), ()), groups=(ALL,))
    prediction = predict_trace(trace, network)
    assert (prediction.timeline.step_s, prediction.simulation.core_scale) == (3.0 * scale, scale)
    assert with_better_steps(prediction).better[0] == ("computations twice as fast", 1.5 * scale)
    assert predict_trace(trace, network, Computing(on_gpu=True)).timeline.step_s == 3.0
    assert predict_trace(trace, network, Computing(rates=Roofline({"bits8": 1.0}, 1.0))).timeline.step_s == 1.0


def test_the_scale_that_explains_a_measured_step() -> None:
    """What is hidden behind communication, and what is not."""
    step = TracedStep((compute(1.0), call(0), compute(1.0), wait(0)), (all_reduce(4, is_async=True),))
    trace = replace(traced(step, groups=(TWO,)), num_ranks=2)
    for measured_s, scale in ((10.0, 5.0), (5.0, 1.0), (4.5, 0.5)):
        simulation = StepSimulation(trace, SECOND, Computing(on_gpu=True))
        assert fitted_scale(simulation, measured_s) == pytest.approx(scale)
    with pytest.raises(ValueError, match="communication alone takes 4 s on this network"):
        fitted_scale(StepSimulation(trace, SECOND), 3.0)
    with pytest.raises(ValueError, match="the computations are too short"):
        fitted_scale(StepSimulation(traced(TracedStep((compute(0.0),), ())), SECOND), 3.0)
