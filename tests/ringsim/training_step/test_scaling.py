"""A step on several numbers of ranks: what is told and drawn of each, and of them together."""

import pytest
from msgspec.structs import replace

from ringsim import Network, plot
from ringsim.gpus import Roofline
from ringsim.report import format_trace_scaling
from ringsim.traces import Group, Operator, ProgramTrace, TracedStep
from ringsim.training_step import Computing, TraceScaling, predict_trace
from tests.ringsim.made_networks import made_network
from tests.ringsim.traces.made_trace import all_reduce, call, compute, traced

NETWORK = Network.uniform(latency_s=1e-3, bandwidth_bytes_per_s=1e9)
BY_FLOPS = Computing(rates=Roofline({"bits8": 1e12}, 1e12))


def trace_of(num_ranks: int, flops: int = 10**9) -> ProgramTrace:
    """A step with an all_reduce of all ranks."""
    step = TracedStep((compute(0.01, Operator("aten.mm", "float32", flops, 8)), call(0)), (all_reduce(2**20),))
    return traced(step, groups=(Group(tuple(range(num_ranks)), "gloo"),), num_ranks=num_ranks)


def scaling_of(*ranks: int, tokens: int | None = None, single_s: float | None = None) -> TraceScaling:
    """Of the step above."""
    return TraceScaling([predict_trace(trace_of(num_ranks), NETWORK) for num_ranks in ranks], tokens, single_s)


def test_the_steps_are_those_of_single_predictions() -> None:
    """In order of their ranks; efficiency is that of the fewest ranks, or of a process alone if its step is known."""
    scaling = scaling_of(8, 2, 4, tokens=50)
    for step, num_ranks in zip(scaling.steps, (2, 4, 8), strict=True):
        alone = predict_trace(trace_of(num_ranks), NETWORK).timeline
        assert step[:5] == (num_ranks, alone.step_s, alone.compute_s, alone.exposed_s, alone.communication_s)
        assert step.efficiency == scaling.steps[0].step_s / alone.step_s
        assert step.total_tokens_per_s == 50 * num_ranks / alone.step_s
    assert scaling.steps[-1].efficiency < scaling.steps[0].efficiency == 1
    [alone_step] = scaling_of(2, single_s=0.01).steps
    assert (alone_step.efficiency, alone_step.total_tokens_per_s) == (0.01 / alone_step.step_s, None)


def test_work_that_changes_with_the_ranks_is_told() -> None:
    """As of a program that shares a batch of one size among all ranks."""
    for flops, told in (((1000, 1001), ""), ((2 * 10**12, 10**12), "a rank computes 2 TFLOP on 2 ranks and 1 TFLOP")):
        traces = map(trace_of, (2, 4), flops)
        scaling = TraceScaling([predict_trace(trace, NETWORK, BY_FLOPS) for trace in traces])
        assert scaling.changed_work.startswith(told)
        assert scaling.as_dict()["changed_work"] == (scaling.changed_work or None)
        assert bool(scaling.changed_work) == bool(told)


def test_how_sure_a_scaling_is_stands_below_its_table() -> None:
    """As in JSON; a compiled program has a range on each number of ranks."""
    scaling = TraceScaling([predict_trace(trace_of(ranks), NETWORK, BY_FLOPS) for ranks in (2, 4)])
    told = "lower bound (roofline at peak rates)"
    assert f"\n{told}\nsteps: 1 recorded" in format_trace_scaling(scaling)
    assert scaling.as_dict()["basis"] == told
    assert any(text.get_text().startswith(told) for text in plot(scaling).texts)
    traces = [replace(trace_of(ranks), is_compiled=True) for ranks in (2, 4)]
    compiled = TraceScaling([predict_trace(trace, NETWORK, BY_FLOPS) for trace in traces])
    text = " ".join(format_trace_scaling(compiled).split())
    assert all(f" {ranks} ranks: compiled program: between " in text for ranks in (2, 4))
    assert [step["fused_s"] for step in compiled.as_dict()["scaling"]] == [step.step_s for step in scaling.steps]


def test_a_step_that_never_ends_is_not_efficient() -> None:
    """And its time is None in JSON; it is refused as a picture."""
    network = made_network('[[failure]]\nrank = 1\nat = "0s"')
    scaling = TraceScaling([predict_trace(trace_of(ranks), network) for ranks in (2, 4)])
    assert [step.efficiency for step in scaling.steps] == [0.0, 0.0]
    assert [step["step_s"] for step in scaling.as_dict()["scaling"]] == [None, None]
    with pytest.raises(ValueError, match="the step never ends, as something fails: there is nothing to draw"):
        plot(scaling)
