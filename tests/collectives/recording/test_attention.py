"""The kernels of attention in a recording: those of a GPU without data, those of a CPU with data."""

import pytest

from ringsim.traces import Device
from tests.collectives.recording.recorded import IMPORTS, recorded, trace_of
from tests.docs.pages import blocks

HEADS, LENGTH, WIDTH, LONG = 8, 512, 64, 2**15
PROGRAM = f"""{IMPORTS}
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
WAY = sys.argv[1]
attend = nn.functional.scaled_dot_product_attention
mesh = init_device_mesh("cuda", (8,))
weights = nn.Parameter(torch.ones(1, {HEADS}, {LENGTH}, {WIDTH}, device="cuda"))
optimizer = torch.optim.SGD([weights], lr=0.1)
tokens = torch.arange({LENGTH}, device="cuda") % 256
def attended(x):
    if WAY == "causal":
        return attend(x, x, x, is_causal=True, dropout_p=0.1)
    if WAY == "mask":
        return attend(x, x, x, torch.ones({LENGTH}, {LENGTH}, dtype=torch.bool, device="cuda"))
    if WAY == "grouped":
        return attend(x, x[:, :2], x[:, :2], enable_gqa=True)
    if WAY == "narrow":
        return attend(x[..., :60], x[..., :60], x[..., :60])
    if WAY == "float32":
        return attend(x.float(), x.float(), x.float())
    if WAY == "math":
        with sdpa_kernel(SDPBackend.MATH):
            return attend(x, x, x)
    if WAY == "priority":
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], set_priority=True):
            return attend(x, x, x[..., :32])
    if WAY == "sharded":
        x = distribute_tensor(x.detach(), mesh, [Shard(1)]).requires_grad_()
        return attend(x, x, x, is_causal=True).to_local()
    if WAY == "context":
        with context_parallel(mesh, buffers=[part := x.detach().clone()], buffer_seq_dims=[2]):
            part = part.clone().requires_grad_()
            nn.functional.scaled_dot_product_attention(part, part, part, is_causal=True).sum().backward()
        return x
    if WAY == "inference":
        with torch.inference_mode():
            attend(x, x, x)
        return x
    if WAY.endswith("sequences"):
        ends = torch.tensor([0, 100, 300, {LENGTH}], dtype=torch.int32, device="cuda")
        ends = (ends + torch.randn((), device="cuda")).int() if WAY == "unknown sequences" else ends
        x = x[0].transpose(0, 1)
        return varlen_attn(x, x, x, ends, ends, 212, 212, window_size=(-1, 0))
    if WAY == "long":
        x = x.repeat(1, 1, {LONG // LENGTH}, 1)
    return attend_to_documents(x, torch.randn({LENGTH}, device="cuda") if WAY == "unknown" else tokens)
@torch.compile(disable=WAY != "flex")
def attend_to_documents(x, tokens):
    documents, length = (tokens == 0).cumsum(0), x.shape[2]
    def keep(b, h, q, k):
        is_other = documents[q % {LENGTH}] != documents[k % {LENGTH}]
        return (q >= k) & (q // {LENGTH} == k // {LENGTH}) & ~is_other
    mask = create_block_mask(keep, None, None, length, length, "cuda", _compile=True)
    return flex_attention(x, x, x, block_mask=mask)
while True:
    attended(weights.bfloat16()).sum().backward()
    optimizer.step()
"""
FLASH, EFFICIENT = "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention"
CUDNN = "aten._scaled_dot_product_cudnn_attention"
SQUARE = 4 * HEADS * LENGTH * LENGTH * WIDTH
PART = LENGTH // 8
TRIANGLE = 4 * HEADS * WIDTH * LENGTH * (LENGTH + 1) // 2
SEQUENCES = "torch_attn._varlen_attn"
KERNELS = {
    "causal": (FLASH, [TRIANGLE]),
    "mask": (EFFICIENT, [SQUARE]),
    "grouped": (FLASH, [SQUARE]),
    "narrow": (FLASH, [SQUARE]),  # a GPU fills the heads up to multiples of 8
    "float32": (EFFICIENT, [SQUARE]),
    "sharded": (FLASH, [TRIANGLE // 8]),  # each rank has one head
    # Rank 0 has the first and the last sixteenth of the queries: of keys of other ranks it needs a half.
    "context": (FLASH, [4 * HEADS * WIDTH * PART * (PART + 1) // 2, *[4 * HEADS * WIDTH * PART * PART // 2] * 7]),
    "sequences": (SEQUENCES, [4 * HEADS * WIDTH * sum(n * (n + 1) // 2 for n in (100, 200, 212))]),
    "unknown sequences": (SEQUENCES, [4 * HEADS * WIDTH * sum(n * (n + 1) // 2 for n in (212, 212, 88))]),
    # Blocks of 128 that are on or below the diagonal: 3 of 4 of each document; of a longer mask samples are computed.
    "flex": ("ringsim.flex_attention", [SQUARE * 2 * 3 // 16]),
    "long": ("ringsim.flex_attention", [LONG // LENGTH * SQUARE * 2 * 3 // 16]),
    "unknown": ("ringsim.flex_attention", [SQUARE * 10 // 16]),  # all may be one document
}


def flops_of(way: str, is_fake: bool, program: str = PROGRAM) -> dict[str, list[int]]:
    """Return the operations of each call of an operator that has some."""
    flops: dict[str, list[int]] = {}
    trace = trace_of(program, way, is_fake=is_fake, device=Device.CUDA)
    assert not trace.is_compiled
    for event in trace.steps[0].events:
        for operator in event.operators:
            if operator.flops:
                flops.setdefault(operator.name, []).extend([operator.flops] * operator.count)
    return flops


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * (way == "flex")) for way in KERNELS])
def test_without_data_attention_runs_by_the_kernel_of_a_gpu(way: str) -> None:
    """Which one depends on dtype and mask; a backward pass costs 2.5 times as much."""
    name, flops = KERNELS[way]
    backward = [operations * 5 // 2 for operations in flops]
    assert flops_of(way, is_fake=True) == {name: flops, f"{name}_backward": backward}


def test_the_program_may_choose_the_kernel() -> None:
    """`sdpa_kernel` is obeyed, and inference mode has the same kernels."""
    assert set(flops_of("math", is_fake=True)) == {"aten.bmm"}
    assert flops_of("inference", is_fake=True) == {FLASH: [SQUARE]}
    # Two products forward and five backward, of which one and two have values of half the width.
    expected = {CUDNN: [SQUARE * 3 // 4], f"{CUDNN}_backward": [SQUARE * 2]}
    assert flops_of("priority", is_fake=True) == expected


def test_with_data_attention_runs_by_the_kernel_of_a_cpu() -> None:
    """Also on sharded heads; a CPU has none for parts of a sequence, which is told in one line."""
    of_cpu = f"{FLASH}_for_cpu"
    assert flops_of("sharded", is_fake=False)[of_cpu] == KERNELS["sharded"][1]
    told = recorded(PROGRAM, "context", device=Device.CUDA)
    assert told.endswith("RuntimeError: attention on parts of a sequence needs kernels of a GPU: record with --fake")


def test_the_manual_s_module_for_a_package_that_needs_a_gpu_records_the_same_kernel() -> None:
    """It has the heads behind the length of the sequence, as flash-attn has."""
    (module,) = [block.text for block in blocks("docs/trace.md") if block.file == "flash_attn.py"]
    attended = f"{module}\nattended = lambda x: flash_attn_func(*[x.transpose(1, 2)] * 3, causal=True)\n"
    flops = flops_of("package", is_fake=True, program=PROGRAM.replace("while True:", f"{attended}while True:"))
    assert flops == {FLASH: [TRIANGLE], f"{FLASH}_backward": [TRIANGLE * 5 // 2]}
