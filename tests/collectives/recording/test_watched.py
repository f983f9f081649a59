"""A trace names the operators of each computation, and which stream waits for which."""

from functools import cache
from itertools import pairwise

import pytest
from msgspec.structs import replace

from collectives.recording.program import with_times_of
from ringsim.traces import Operator, Product, TraceCall, TracedStep, TraceEvent, TraceEventKind
from tests.collectives.recording.recorded import IMPORTS, trace_of

PROGRAM = f"""{IMPORTS}
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
WAY = sys.argv[1]
dist.init_process_group("gloo")
model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4 if "sdp" in WAY else 2)])
if WAY == "ddp":
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4)
if "sdp" in WAY:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")) if WAY == "hsdp" else None
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 8)).sum().backward()
    for parameter in model.parameters():
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


@cache
def step_of(way: str) -> TracedStep:
    """Return the recorded step."""
    return trace_of(PROGRAM, way, num_ranks=4).steps[0]


def place(step: TracedStep, kind: TraceEventKind, call: int) -> int:
    """The only event of this kind for this call."""
    (index,) = [index for index, event in enumerate(step.events) if (event.kind, event.call) == (kind, call)]
    return index


def computes_with(step: TracedStep, event: int) -> set[str]:
    """The names of a computation's operators."""
    return {operator.name for operator in step.events[event].operators}


def calls_of(step: TracedStep, collective: str) -> list[int]:
    """The indices of its calls of a collective."""
    return [index for index, call in enumerate(step.calls) if call.collective == collective]


def test_buckets_of_ddp_come_after_the_backward_pass_so_far() -> None:
    """They are given to the stream of the computations, which waits for all of them at the end."""
    step = step_of("ddp")
    assert len(step.calls) == 2
    for index, call in enumerate(step.calls):
        assert MATMULS & computes_with(step, place(step, CALL, index) - 1)
        assert (call.is_async, call.on_side_stream, call.after) == (True, False, None)
        assert place(step, WAIT, index) > place(step, CALL, 1)


@pytest.mark.parametrize("way", ["fsdp", "hsdp"])
def test_fsdp_gathers_one_layer_ahead(way: str) -> None:
    """In both passes a gather waits until an earlier one has been copied out, and computations wait before they do so.

    In the backward pass a layer's gradients are copied in when the last are sent.
    """
    step = step_of(way)
    for index in range(4):
        read, call = place(step, READ, index), step.calls[index]
        assert (call.collective, call.on_side_stream, call.is_async) == ("all_gather", True, False)
        assert computes_with(step, read + 1) == {"fsdp.split_with_sizes_copy"}
        if index > 1:
            assert call.after == place(step, READ, index - 2) + 1
    gathers, scatters = calls_of(step, "all_gather")[4:], calls_of(step, "reduce_scatter")
    assert (len(gathers), len(scatters)) == (4, 4)
    for last, index in pairwise(gathers):
        assert step.calls[index].after == place(step, READ, last) + 1
    for index in scatters:
        with_operators = [event for event in range(place(step, CALL, index)) if step.events[event].operators]
        assert step.calls[index].after == with_operators[-1]
        assert "fsdp.chunk_cat" in computes_with(step, with_operators[-1])
    for last, index in pairwise(scatters):
        assert place(step, READ, last) < step.calls[index].after


def test_hsdp_reduces_across_the_copies_what_was_scattered() -> None:
    """On a stream that waits for that of the reduce_scatters."""
    step = step_of("hsdp")
    reduces = calls_of(step, "all_reduce")
    assert [step.calls[index].after_calls for index in reduces] == [(index - 1,) for index in reduces]
    assert [index - 1 for index in reduces] == calls_of(step, "reduce_scatter")


def test_functional_collectives_are_waited_for() -> None:
    """Where the program first uses what they return."""
    step = step_of("functional")
    assert len(step.calls) == 4
    for index in range(4):
        assert place(step, WAIT, index) > place(step, CALL, index)


def test_operators_are_counted() -> None:
    """Two products in the forward pass, of (2, 8) and (8, 8): their arithmetic, and 8 + 16 + 64 + 16 numbers."""
    step = step_of("twice")
    operators = step.events[0].operators
    addmm = Operator("aten.addmm", "float32", 2 * 2 * 8 * 8, 4 * (8 + 2 * 8 + 8 * 8 + 2 * 8), 2, True, Product(2, 8, 8))
    assert addmm in operators
    assert not {"aten.t", "aten.detach", "aten.view"} & {operator.name for operator in operators}
    assert not any(operator.name.startswith("profiler.") for operator in operators)


def test_times_are_laid_on_what_was_watched() -> None:
    """In the proportion of the watched step; a step that makes other calls stays as it is."""
    call, made = TraceCall("all_reduce", 64, "float32", 0, is_async=False), TraceEvent(CALL, call=0)
    first = TraceEvent(COMPUTE, 9.0, operators=(Operator("aten.mm", "float32", 8, 8),))
    later = TraceEvent(COMPUTE, 1.0), TraceEvent(READ, call=0), TraceEvent(COMPUTE, 3.0)
    watched = TracedStep((first, made, *later), (replace(call, after=0),))
    timed = TracedStep((TraceEvent(COMPUTE, 2.0), made, TraceEvent(COMPUTE, 0.5)), (call,))
    both = with_times_of(timed, watched)
    assert [event.seconds for event in both.events] == [2.0, 0.0, 0.125, 0.0, 0.375]
    assert (both.events[0].operators, both.calls) == (first.operators, watched.calls)
    other = TracedStep(timed.events, (replace(call, size_bytes=32),))
    assert with_times_of(other, watched) is other
