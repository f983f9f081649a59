"""Programs written as people write them are recorded unchanged; calls, operations and memory are worked out by hand.

The programs that these are like: torchtitan, Megatron-core, picotron, nanochat, DiLoCo, nanoGPT, Trainer and speedruns.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ringsim.traces import AssumedValues, Device, ProgramTrace
from tests.collectives.recording.recorded import trace_of

PROGRAMS = Path(__file__).parent / "programs"
RANKS = 8
F32, BF16 = 4, 2  # bytes of a number


def traced(name: str, **options: Any) -> ProgramTrace:
    """Return the trace of a program that asks for GPUs, on tensors without data."""
    return trace_of(PROGRAMS / f"{name}.py", num_ranks=RANKS, is_fake=True, device=Device.CUDA, **options)


def calls(trace: ProgramTrace) -> Counter[tuple[str, int, int]]:
    """The calls of all steps: collective, ranks of the group, and bytes."""
    return Counter(
        (call.collective, len(trace.groups[call.group].ranks), call.size_bytes)
        for step in trace.steps
        for call in step.calls
    )


def attention(batch: int, length: int, width: int, is_causal: bool) -> int:
    """The operations of one layer, forward, and 2.5 times as many backward."""
    pairs = length * (length + 1) // 2 if is_causal else length * length
    return batch * 4 * width * pairs * 7 // 2


def test_a_grid_of_ranks() -> None:
    """Of the products, the gradient of the first layer's input is not needed."""
    width, layers, batch, tp = 256, 2, 64, 2
    trace = traced("grids")
    assert calls(trace) == {
        ("all_gather", tp, batch * width * BF16): layers,
        ("all_reduce", RANKS // tp, layers * width * width // tp * F32): 1,
        ("all_reduce", RANKS // tp, F32): 1,
    }
    assert trace.steps[0].flops == (3 * layers - 1) * 2 * batch * width * width // tp
    assert trace.memory is not None
    assert trace.memory.end.parameters == layers * width * width // tp * BF16


def test_optimizers_that_shard_their_state() -> None:
    """Muon's state is of the rank's own matrices; the collector's freezing hides no tensor."""
    width, layers, vocabulary, batch = 256, 8, 1024, 512
    trace = traced("muon")
    matrix, table = width * width * F32, vocabulary * width * F32
    assert calls(trace) == {
        ("reduce_scatter", RANKS, RANKS * matrix): layers // RANKS,
        ("all_gather", RANKS, RANKS * matrix): layers // RANKS,
        ("all_reduce", RANKS, table): 2,
    }
    of_model = 6 * batch * width * (layers * width + vocabulary)
    assert trace.steps[0].flops == of_model + layers // RANKS * 5 * 3 * 2 * width**3
    assert trace.memory is not None
    assert trace.memory.end.parameters == layers * matrix + 2 * table
    assert trace.memory.end.optimizer == pytest.approx(2 * 2 * table + layers // RANKS * matrix, abs=64)


def test_every_fourth_step_communicates() -> None:
    """The outer optimizer's calls are there once in four steps."""
    width, layers = 256, 4
    trace = traced("diloco", num_steps=4)
    assert calls(trace) == {
        ("all_reduce", RANKS, width * width * F32): layers,
        ("all_reduce", RANKS, width * F32): layers + 2,
    }


def test_accumulated_gradients() -> None:
    """DDP synchronises in the last of four micro-steps; the token table is also the last layer."""
    width, layers, vocabulary, batch, length, accumulated = 256, 2, 1024, 2, 128, 4
    trace = traced("accumulated")
    multiplied = layers * 12 * width**2 + vocabulary * width
    size = multiplied + length * width + layers * 2 * width
    assert sum(step.size_bytes for step in trace.steps) == size * F32
    assert {call.collective for call in trace.steps[0].calls} == {"all_reduce"}
    of_attention = layers * attention(batch, length, width, is_causal=True)
    assert trace.steps[0].flops == accumulated * (6 * batch * length * multiplied + of_attention)
    assert trace.memory is not None
    assert trace.memory.end.parameters == size * F32
    assert trace.memory.end.optimizer == pytest.approx(2 * size * F32, abs=256)


def test_a_trainer_with_fsdp2() -> None:
    """Layers are gathered forward and backward in each micro-step; the norm of all shards is one call."""
    width, layers, batch, length, accumulated = 256, 2, 2, 128, 2
    trace = traced("fine_tuned")
    layer = (12 * width**2 + 13 * width) * F32
    assert calls(trace) == {
        ("all_gather", RANKS, layer): 2 * layers * accumulated,
        ("reduce_scatter", RANKS, layer): layers,
        ("all_reduce", RANKS, 12 * layers * F32): 1,
        ("all_gather", RANKS, RANKS * F32): 1,
    }
    products = 6 * layers * 12 * width**2 - 2 * 3 * width**2  # no gradient of the first layer's input
    of_attention = layers * attention(batch, length, width, is_causal=False)
    assert trace.steps[0].flops == accumulated * (batch * length * products + of_attention)


@pytest.mark.slow
def test_a_speedrun(tmp_path: Path) -> None:
    """A compiled program has the calls and the products of its eager form, and fused kernels for the rest."""
    width, layers, vocabulary, batch, length = 256, 2, 1024, 4, 256
    trace = traced("speedrun")
    multiplied = layers * 12 * width**2 + vocabulary * width
    assert not trace.is_compiled
    assert sum(step.size_bytes for step in trace.steps) == multiplied * F32 + vocabulary * width * BF16
    of_attention = layers * attention(batch, length, width, is_causal=True)
    assert trace.steps[0].flops == 6 * batch * length * multiplied + of_attention
    eager = tmp_path / "eager.py"
    eager.write_text((PROGRAMS / "speedrun.py").read_text().replace("dynamic=False", "disable=True"))
    assert 2 * bytes_of_others(trace) < bytes_of_others(traced(str(eager.with_suffix(""))))


def bytes_of_others(trace: ProgramTrace) -> int:
    """The bytes of the operators of a step that multiply nothing."""
    operators = [operator for event in trace.steps[0].events for operator in event.operators]
    return sum(operator.count * operator.size_bytes for operator in operators if not operator.flops)


def test_tensor_parallelism_by_hand() -> None:
    """A checkpoint's forward pass runs again, with its call; a product's backward pass is two products."""
    width, hidden, layers, vocabulary, batch, length, tp = 256, 1024, 2, 1024, 2, 128, 2
    trace = traced("megatron")
    tokens = batch * length
    size = layers * (width * hidden // tp * 2 + 2 * width) + width * vocabulary // tp
    assert calls(trace) == {
        ("all_reduce", tp, tokens * width * BF16): 3 * layers + 1,
        ("all_reduce", tp, tokens * F32): 3,
        ("reduce_scatter", RANKS // tp, size * F32): 1,
        ("all_gather", RANKS // tp, size * BF16): 1,
        ("all_reduce", RANKS, F32): 1,
        ("all_reduce", RANKS // tp, F32): 1,
    }
    of_blocks = layers * 4 * 2 * 2 * tokens * width * hidden // tp
    assert trace.steps[0].flops == of_blocks + 3 * 2 * tokens * width * vocabulary // tp


def test_fsdp2_over_tensor_parallelism() -> None:
    """Sequences are gathered before five products of a block, and their gradients after the other two."""
    width, hidden, layers, vocabulary, batch, length, tp = 256, 768, 2, 1024, 2, 128, 2
    trace = traced("fsdp2_tp")
    multiplied = (4 * width**2 + 3 * width * hidden) // tp  # of a block
    block, ends, dp = multiplied + width, 2 * vocabulary * width // tp, RANKS // tp
    sequence, norms = batch * length * width * BF16, (8 * layers + 2) * F32
    assert calls(trace) == {
        ("all_gather", dp, block * BF16): 2 * layers,
        ("all_gather", dp, ends * BF16): 1,
        ("reduce_scatter", dp, block * F32): layers,
        ("reduce_scatter", dp, ends * F32): 1,
        ("all_gather", tp, sequence): 7 * layers + 2,
        ("reduce_scatter", tp, sequence): 7 * layers + 2,
        ("all_gather", tp, batch * length * vocabulary * BF16): 1,
        ("all_reduce", tp, width * BF16): layers,  # the gradient of a norm's weights
        ("all_reduce", dp, norms): 1,
        ("all_reduce", tp, norms): 1,
    }
    products = layers * multiplied + vocabulary * width // tp
    of_attention = layers * attention(batch, length, width // tp, is_causal=True)
    assert trace.steps[0].flops == 6 * batch * length * products + of_attention
    assert trace.memory is not None
    assert trace.memory.end.parameters == (layers * block + ends) // dp * F32


@pytest.mark.slow
def test_batch_norms_over_all_ranks() -> None:
    """A norm gathers mean, deviation and count of each channel, and reduces two sums; the teacher runs forward only."""
    width, batch, size, classes, norms = 16, 4, 16, 8, 2
    trace = traced("twins")
    of_norms = (2 * width + 1) * RANKS * F32
    parameters = 3 * 9 * width + 9 * width * width // 4 + width * classes + norms * 2 * width
    assert calls(trace) == {
        ("broadcast", RANKS, norms * 2 * width * F32): 1,
        ("broadcast", RANKS, norms * 8): 1,
        ("all_gather", RANKS, of_norms): 2 * norms,
        ("all_reduce", RANKS, 2 * width * F32): norms,
        ("all_gather", RANKS, RANKS * batch * classes * F32): 1,
        ("all_reduce", RANKS, parameters * F32): 1,
    }
    first, second = (2 * batch * size**2 * 9 * inputs * width for inputs in (3, width // 4))
    last, scores = 2 * batch * width * classes, 2 * batch * classes * RANKS * batch
    assert trace.steps[0].flops == (1 + 2) * first + (1 + 3) * (second + last) + 2 * scores


@pytest.mark.slow
def test_experts() -> None:
    """Tokens go to their experts and return; backward only the returned ones do, as the input needs no gradient."""
    width, hidden, experts, top, tokens = 256, 512, 16, 2, 1024
    trace = traced("experts", assume=AssumedValues.BALANCED)
    assert calls(trace) == {
        ("all_to_all", RANKS, experts * 8): 1,
        ("all_to_all", RANKS, tokens * top * width * BF16): 3,
        ("all_reduce", RANKS, experts * width * BF16): 1,
    }
    of_router = 2 * 2 * tokens * width * experts
    assert trace.steps[0].flops == of_router + 5 * 2 * tokens * top * width * hidden
