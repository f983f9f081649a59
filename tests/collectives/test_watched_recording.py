"""What a trace says of the data flow: what each call needs, who reads its result, and which operators compute."""

from pathlib import Path

import pytest

from collectives.recording.watched_step import with_times_of
from ringsim.traces import Call, Operator, TracedStep, TraceEvent, TraceEventKind
from tests.collectives.test_recording import recorded

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WAY = sys.argv[1]
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
if WAY == "ddp":
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4)
if WAY == "fsdp":
    for layer in (*model, model):
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 8)).sum().backward()
    for parameter in model.parameters():
        if WAY == "plain":
            bucket = torch.cat([parameter.grad.flatten()])
            dist.all_reduce(bucket)
            parameter.grad.copy_(bucket.view_as(parameter))
        if WAY == "functional":
            parameter.grad = functional.all_reduce(parameter.grad, "sum", dist.group.WORLD)
    if WAY == "twice":
        total = torch.zeros(1)
        for _ in range(2):
            dist.all_reduce(total)
    optimizer.step()
    optimizer.zero_grad()
"""
COMPUTE, CALL, WAIT, READ = TraceEventKind.COMPUTE, TraceEventKind.CALL, TraceEventKind.WAIT, TraceEventKind.READ
MATMULS = {"aten.mm", "aten.addmm"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script that torchrun could start."""
    path = tmp_path_factory.mktemp("program") / "train.py"
    path.write_text(PROGRAM)
    return path


def step_of(program: Path, way: str) -> TracedStep:
    """The recorded step."""
    trace = recorded(program, way, num_ranks=4)
    assert not isinstance(trace, str), trace
    return trace.steps[0]


def place(step: TracedStep, kind: TraceEventKind, call: int) -> int:
    """The only event of this kind for this call."""
    (index,) = [index for index, event in enumerate(step.events) if (event.kind, event.call) == (kind, call)]
    return index


def computes_with(step: TracedStep, event: int) -> set[str]:
    """The names of a computation's operators."""
    return {operator.name for operator in step.events[event].operators}


def test_buckets_of_ddp_need_the_backward_pass(program: Path) -> None:
    """Each needs the computation just before it, and is read after all have been waited for."""
    step = step_of(program, "ddp")
    assert len(step.calls) == 2
    for index, call in enumerate(step.calls):
        assert call.after == place(step, CALL, index) - 1
        assert MATMULS & computes_with(step, call.after)
        assert place(step, READ, index) > place(step, WAIT, 1)
        assert "aten.copy_" in computes_with(step, place(step, READ, index) + 1)
        assert (call.is_async, call.on_side_stream) == (True, False)


def test_gathers_of_fsdp_need_nothing_of_the_step(program: Path) -> None:
    """Parameters are there since the optimizer's step; gradients are not. Results are read by the copy out of them."""
    step = step_of(program, "fsdp")
    assert all(call.on_side_stream and not call.is_async for call in step.calls)
    # Backwards both layers are gathered again, the first one while the second computes.
    gather, scatter = "all_gather", "reduce_scatter"
    assert [call.collective for call in step.calls] == [gather, gather, gather, gather, scatter, scatter]
    for index, call in enumerate(step.calls):
        read = place(step, READ, index)
        if call.collective == gather:
            assert call.after == -1
            assert "fsdp.split_with_sizes_copy" in computes_with(step, read + 1)
        else:
            assert call.after == place(step, CALL, index) - 1
            assert "aten.mm" in computes_with(step, call.after)
            assert read > place(step, CALL, len(step.calls) - 1)  # a cast on the side stream reads it earlier


@pytest.mark.parametrize("way", ["plain", "functional"])
def test_copies_are_looked_through(program: Path, way: str) -> None:
    """All calls need the backward pass, not the copy before them, nor the calls before them."""
    step = step_of(program, way)
    assert [call.after for call in step.calls] == [0] * 4
    for index in range(4):
        assert place(step, READ, index) > place(step, CALL, index)
    assert not any(call.on_side_stream for call in step.calls)


def test_a_call_may_need_a_call(program: Path) -> None:
    """The second reads what the first has left; the result is read by no computation."""
    step = step_of(program, "twice")
    assert step.calls[1].after == place(step, CALL, 0)
    assert READ not in {event.kind for event in step.events}


def test_operators_are_counted(program: Path) -> None:
    """Two products in the forward pass, of (2, 8) and (8, 8): their arithmetic, and 8 + 16 + 64 + 16 numbers."""
    step = step_of(program, "twice")
    operators = step.events[0].operators
    addmm = Operator("aten.addmm", "float32", 2 * 2 * 8 * 8, 4 * (8 + 2 * 8 + 8 * 8 + 2 * 8), 2)
    assert addmm in operators
    assert not {"aten.t", "aten.detach", "aten.view"} & {operator.name for operator in operators}
    assert not any(operator.name.startswith("profiler.") for operator in operators)


def test_times_are_laid_on_what_was_watched() -> None:
    """In the proportion of the watched step; a step that makes other calls stays as it is."""
    call = Call("all_reduce", 64, "float32", 0, is_async=False)
    work = (Operator("aten.mm", "float32", 8, 8),)
    watched = TracedStep(
        (
            TraceEvent(COMPUTE, 9.0, operators=work),
            TraceEvent(CALL, call=0),
            TraceEvent(COMPUTE, 1.0),
            TraceEvent(READ, call=0),
            TraceEvent(COMPUTE, 3.0),
        ),
        (Call("all_reduce", 64, "float32", 0, is_async=False, after=0),),
    )
    timed = TracedStep((TraceEvent(COMPUTE, 2.0), TraceEvent(CALL, call=0), TraceEvent(COMPUTE, 0.5)), (call,))
    both = with_times_of(timed, watched)
    assert [event.seconds for event in both.events] == [2.0, 0.0, 0.125, 0.0, 0.375]
    assert (both.events[0].operators, both.calls) == (work, watched.calls)
    other = TracedStep(timed.events, (Call("all_reduce", 32, "float32", 0, is_async=False),))
    assert with_times_of(other, watched) is other
