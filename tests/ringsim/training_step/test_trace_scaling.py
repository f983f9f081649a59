"""A step on several numbers of ranks: what is told of each, and of them together."""

from dataclasses import replace
from pathlib import Path

import pytest

from ringsim import plot
from ringsim.network import Network, load_network
from ringsim.report import format_trace_scaling
from ringsim.traces import Group, Operator, ProgramTrace, TracedStep
from ringsim.training_step import Computing, Roofline, predict_scaling, predict_trace
from tests.ringsim.traces.made_trace import all_reduce, call, compute, traced

NETWORK = Network(latency_s=1e-3, bandwidth_bytes_per_s=1e9)


def trace_of(num_ranks: int, flops: int = 10**9) -> ProgramTrace:
    """A step with an all_reduce of all ranks."""
    step = TracedStep((compute(0.01, Operator("aten.mm", "float32", flops, 8)), call(0)), (all_reduce(2**20),))
    return traced(step, groups=(Group(tuple(range(num_ranks)), "gloo"),), num_ranks=num_ranks)


def test_the_steps_are_those_of_single_predictions() -> None:
    """In order of their ranks, and told of as they are made."""
    told: list[int] = []
    scaling = predict_scaling(map(trace_of, (8, 2, 4)), NETWORK, tokens=50, on_step=told.append)
    assert told == [1, 1, 1]
    for step, num_ranks in zip(scaling.steps, (2, 4, 8), strict=True):
        alone = predict_trace(trace_of(num_ranks), NETWORK).timeline
        assert step[:5] == (num_ranks, alone.step_s, alone.compute_s, alone.exposed_s, alone.communication_s)
        assert step.efficiency == scaling.steps[0].step_s / alone.step_s
        assert step.total_tokens_per_s == 50 * num_ranks / alone.step_s
    assert scaling.steps[-1].efficiency < scaling.steps[0].efficiency == 1


def test_without_tokens_none_are_told() -> None:
    """But None."""
    assert predict_scaling([trace_of(2)], NETWORK).steps[0].total_tokens_per_s is None


def test_work_that_changes_with_the_ranks_is_told() -> None:
    """As of a program that shares a batch of one size among all ranks."""
    by_flops = Computing(roofline=Roofline({1: 1e12}, 1e12))
    same = predict_scaling([trace_of(2, 1000), trace_of(4, 1001)], NETWORK, by_flops)
    assert same.changed_work == ""
    halved = predict_scaling([trace_of(2, 2 * 10**12), trace_of(4, 10**12)], NETWORK, by_flops)
    assert halved.changed_work.startswith("a rank computes 2 TFLOP on 2 ranks and 1 TFLOP on 4 ranks: the work of")
    assert halved.as_dict()["changed_work"] == halved.changed_work


def test_how_sure_a_scaling_is_stands_below_its_table() -> None:
    """As in JSON; a compiled program has a range on each number of ranks."""
    by_flops = Computing(roofline=Roofline({1: 1e12}, 1e12))
    scaling = predict_scaling([trace_of(2), trace_of(4)], NETWORK, by_flops)
    told = "lower bound (roofline at peak rates)"
    assert f"\n{told}\nsteps: 1 recorded" in format_trace_scaling(scaling)
    assert scaling.as_dict()["basis"] == told
    assert any(text.get_text().startswith(told) for text in plot(scaling).texts)
    compiled = predict_scaling([replace(trace_of(ranks), is_compiled=True) for ranks in (2, 4)], NETWORK, by_flops)
    text = " ".join(format_trace_scaling(compiled).split())
    assert all(f" {ranks} ranks: compiled program: between " in text for ranks in (2, 4))
    assert [step["fused_s"] for step in compiled.as_dict()["scaling"]] == [step.step_s for step in scaling.steps]


def test_a_step_that_never_ends_is_not_efficient(tmp_path: Path) -> None:
    """And its time is None in JSON; it is refused as a picture."""
    path = tmp_path / "broken.toml"
    path.write_text(
        """[host]\nranks = 1\n[host.nic]\nlatency = "1us"\nbandwidth = "1GB/s"\n[[failure]]\nrank = 1\nat = "0s"\n"""
    )
    scaling = predict_scaling([trace_of(2), trace_of(4)], load_network(str(path)))
    assert [step.efficiency for step in scaling.steps] == [0.0, 0.0]
    assert [step["step_s"] for step in scaling.as_dict()["scaling"]] == [None, None]
    with pytest.raises(ValueError, match="the step never ends, as something fails: there is nothing to draw"):
        plot(scaling)
