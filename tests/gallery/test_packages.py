"""Trainers of packages run unchanged: calls, operations and memory by hand. `make gallery` installs the packages."""

import pytest

from ringsim.traces import AssumedValues, Device, ProgramTrace
from tests.collectives.recording.recorded import trace_of
from tests.gallery.test_gallery import BF16, F32, PROGRAMS, RANKS, attention, calls

pytestmark = pytest.mark.slow
WIDTH, HIDDEN, LAYERS, VOCABULARY, BATCH, LENGTH = 256, 768, 2, 1024, 2, 128  # of the Llamas
TOKENS = BATCH * LENGTH


def traced(name: str, package: str, *arguments: str, assume: AssumedValues | None = None) -> ProgramTrace:
    """Return the trace of a program that asks for GPUs, unless its package is not installed."""
    pytest.importorskip(package)
    program = PROGRAMS.parent / "packages" / f"{name}.py"
    return trace_of(program, *arguments, num_ranks=RANKS, is_fake=True, device=Device.CUDA, assume=assume)


def flops(block: int) -> int:
    """The operations of a Llama forward and backward, whose blocks have so many weights in products."""
    products = 6 * TOKENS * (LAYERS * block + VOCABULARY * WIDTH)
    return products + LAYERS * attention(BATCH, LENGTH, WIDTH, is_causal=True)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_trainer_of_transformers(way: str) -> None:
    """Checkpoints run the blocks' forward pass again, but for the last product, whose result nothing needs."""
    trace = traced("transformers_trainer", "transformers", way)
    block, table = 3 * WIDTH**2 + 3 * WIDTH * HIDDEN, VOCABULARY * WIDTH  # half as many keys and values as queries
    size = LAYERS * (block + 2 * WIDTH) + 2 * table + WIDTH
    sizes = calls(trace)
    assert trace.memory is not None
    if way == "ddp":
        reduced = [call.size_bytes for call in trace.steps[0].calls if call.collective == "all_reduce"]
        assert sum(reduced) == trace.memory.end.parameters == size * F32
        again = 2 * TOKENS * (block - WIDTH * HIDDEN) + attention(BATCH, LENGTH, WIDTH, is_causal=True) * 2 // 7
        assert trace.steps[0].flops == flops(block) + LAYERS * again
    else:
        assert sizes["all_gather", RANKS, (block + 2 * WIDTH) * BF16] == 2 * LAYERS
        assert sizes["reduce_scatter", RANKS, (block + 2 * WIDTH) * BF16] == LAYERS
        assert trace.memory.end.parameters == size * F32 // RANKS
        assert trace.steps[0].flops == flops(block)


def test_accelerate_with_fsdp2() -> None:
    """Both of two accumulated micro-steps gather; the second reduces."""
    trace = traced("accelerate_parallel", "accelerate")
    block, table = 4 * WIDTH**2 + 3 * WIDTH * HIDDEN, VOCABULARY * WIDTH
    assert calls(trace) == {
        ("all_gather", RANKS, (block + 2 * WIDTH) * BF16): 2 * 2 * LAYERS,
        ("all_gather", RANKS, table * BF16): 2 * 2,
        ("all_gather", RANKS, (table + WIDTH) * BF16): 2,
        ("reduce_scatter", RANKS, (block + 2 * WIDTH) * BF16): LAYERS,
        ("reduce_scatter", RANKS, table * BF16): 1,
        ("reduce_scatter", RANKS, (table + WIDTH) * BF16): 1,
        ("all_reduce", RANKS, (9 * LAYERS + 3) * F32): 1,  # norms of the gradients
        ("all_reduce", RANKS, BF16): 2,
    }
    assert trace.steps[0].flops == 2 * flops(block)
    assert trace.memory is not None
    assert trace.memory.end.parameters == (LAYERS * (block + 2 * WIDTH) + 2 * table + WIDTH) * F32 // RANKS


def test_lightning_with_ddp() -> None:
    """The loss is averaged in each step; a metric of the validation counts classes, as if all were equally many."""
    trace = traced("lightning_module", "lightning", assume=AssumedValues.BALANCED)
    batch, inputs, hidden, classes = 64, 64, 256, 10
    size = inputs * hidden + hidden + 2 * hidden + hidden * classes + classes
    sizes = calls(trace)
    assert (sizes["all_reduce", RANKS, size * F32], sizes["all_reduce", RANKS, F32]) == (1, 1)
    assert trace.steps[0].flops == 2 * batch * (2 * inputs * hidden + 3 * hidden * classes)


def test_fabric_with_fsdp2_over_tensor_parallelism() -> None:
    """The input needs no gradient."""
    trace = traced("fabric_tensor_parallel", "lightning")
    batch, width, hidden, tp = 64, 256, 1024, 2
    assert calls(trace) == {
        ("all_gather", RANKS // tp, 2 * width * hidden // tp * BF16): 1,
        ("reduce_scatter", RANKS // tp, 2 * width * hidden // tp * BF16): 1,
        ("all_reduce", tp, batch * width * BF16): 1,
    }
    assert trace.steps[0].flops == 5 * 2 * batch * width * hidden // tp


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_with_zero(stage: int) -> None:
    """Of two accumulated micro-steps the first reduces from stage 2 on; the same calls run on Gloo."""
    trace = traced("deepspeed_zero", "deepspeed", str(stage))
    width, hidden = 1024, 4096
    weights = 2 * width * hidden * BF16
    whole = weights + (width + hidden) * BF16
    expected = {
        1: {("all_reduce", RANKS, whole): 1, ("all_gather", RANKS, whole): 1},
        2: {("all_reduce", RANKS, whole): 2, ("all_gather", RANKS, whole): 1},
        3: {  # what is small stays gathered until the optimizer steps
            ("all_gather", RANKS, weights): 2,
            ("reduce_scatter", RANKS, whole): 2,
            ("all_gather", RANKS, width * BF16): 1,
            ("all_gather", RANKS, hidden * BF16): 1,
        },
    }[stage]
    norms = (
        {("all_reduce", RANKS, 8): 1} if stage == 3 else {("all_reduce", RANKS, 1): 1, ("all_reduce", RANKS, F32): 1}
    )
    assert calls(trace) == {**expected, **norms}
    assert trace.steps[0].flops == 2 * 5 * 2 * 64 * width * hidden
    assert trace.memory is not None
    assert trace.memory.end.optimizer == 2 * (width * hidden * 2 + width + hidden) * F32 // RANKS


def test_a_kernel_of_triton() -> None:
    """Its operations are not counted, and a step says so; the bytes are those of its tensors."""
    trace = traced("triton_kernel", "triton")
    batch, width, hidden = 64, 256, 1024
    assert trace.steps[0].flops == 5 * 2 * batch * width * hidden
    (kernel,) = (operator for operator in trace.steps[0].operators if not operator.is_counted)
    assert (kernel.name, kernel.count, kernel.size_bytes) == ("triton.squared_relu", 1, 2 * batch * hidden * F32)
