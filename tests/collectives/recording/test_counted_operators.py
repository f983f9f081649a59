"""Operators in a trace: their arithmetic, its precision, those not counted, and calls of TorchScript."""

import pytest

from ringsim.traces import Attention, Device, Product
from tests.collectives.recording.recorded import IMPORTS, trace_of

PROGRAM = f"""{IMPORTS}
from torch.nn import functional as F
dist.init_process_group("nccl")
model = nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x, y = torch.randn(64, 64, device="cuda"), torch.randn(2, 64, 32, device="cuda", dtype=torch.bfloat16)
image, heads = torch.randn(1, 4, 8, 8, device="cuda"), torch.randn(1, 4, 64, 16, device="cuda")
conv = nn.Conv2d(4, 4, 3, device="cuda")
matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
ends = torch.tensor([16, 64], device="cuda", dtype=torch.int32)
@torch.library.custom_op("mine::op", mutates_args=())
def mine(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
mine.register_fake(torch.empty_like)
setup, work = (text.replace(";;", chr(10)) for text in sys.argv[1:])
exec(setup)
while True:
    with torch.no_grad():
        exec(work)
    optimizer.step()
"""
PRODUCT = 2 * 64**3
AUTOCAST = "autocast = torch.autocast('cuda', torch.bfloat16)"
CAST_IN_FORWARD = "torch.amp.custom_fwd(lambda _, x: x @ x, device_type='cuda', cast_inputs=torch.half)(model, x)"
OFFLOADED = "parameter = nn.Parameter(torch.ones(2**18));;adam = torch.optim.Adam([parameter], fused=True)"
QUANTIZED = """@torch.library.custom_op("bitsandbytes::int8_scaled_mm", mutates_args=())
def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor: return left.half()
multiply.register_fake(lambda left, right: left.half())
torch.library.define("bitsandbytes::int8_linear_matmul.out", "(Tensor left, Tensor right, Tensor! out) -> ()")
torch.library.register_fake("bitsandbytes::int8_linear_matmul.out", lambda left, right, out: None)"""
BY_BYTES = """F.max_pool2d(F.gelu(image), 2); F.cross_entropy(x, x.argmax(1)); x.sort()[0].topk(2); x[x.argmax(1)]
F.embedding(x.argmax(1), x).var(); x.scatter_add(0, x.long() * 0, x); torch.cat([x, x]); x.cumsum(0); F.dropout(x)
torch._foreach_add([x, x], 1); F.layer_norm(x, (64,)); F.interpolate(image, scale_factor=2)""".replace("\n", ";;")


@pytest.mark.parametrize(
    ("setup", "work", "told"),
    [
        ("torch.set_float32_matmul_precision('high')", "x @ x", ["tf32"]),
        ("torch.set_float32_matmul_precision('high')", "x.half() @ x.half()", ["float16"]),
        ("matmul.fp32_precision = 'tf32'", "x @ x; conv(image)", ["tf32", "tf32"]),
        ("torch.backends.fp32_precision = 'tf32'", "x @ x", ["tf32"]),
        ("", "matmul.allow_tf32 = True; x @ x; matmul.allow_tf32 = False; x.mm(x)", ["tf32", "float32"]),
        ("", "conv(image); cudnn.allow_tf32 = False; conv(image); cudnn.allow_tf32 = True", ["tf32", "float32"]),
        ("", "torch.linalg.svd(x); torch.linalg.inv(x)", ["aten._linalg_svd", "aten.linalg_inv_ex"]),
        ("half = x.half()", "torch.addmm(x, half, half, out_dtype=x.dtype)", ["float16"]),
        ("", "torch.fft.fft(x); mine(x)", ["aten._fft_r2c", "mine.op"]),
        ("", "x.to_sparse_csr() @ x", ["aten._to_sparse_csr", "aten.mm"]),
        (QUANTIZED, "torch.ops.bitsandbytes.int8_scaled_mm(x.char(), x.char())", ["int8"]),
        (QUANTIZED, "torch.ops.bitsandbytes.int8_linear_matmul.out(x.char(), x.char(), x.int())", ["int8"]),
        ("torch.set_autocast_enabled('cuda', True)", "assert torch.is_autocast_enabled(); x @ x", ["float16"]),
        (AUTOCAST, "with autocast: x.to(torch.get_autocast_gpu_dtype()) @ y[0]", ["bfloat16"]),
        (AUTOCAST, f"with autocast: {CAST_IN_FORWARD}", ["float16"]),
        ("autocast = torch.autocast('cuda', torch.float32)", "with autocast: x.half() @ x.half()", ["float32"]),
        ("side = torch.cuda.Stream()", "with torch.cuda.stream(side): x @ x", ["float32"]),
        ("", BY_BYTES, []),
        ("", "(torch.ones(2**18) * 2).add_(1); torch.ones(9).add_(1)", ["aten.mul on the CPU", "aten.add_ on the CPU"]),
        (OFFLOADED, "parameter.grad = parameter.detach(); adam.step()", ["aten._fused_adam_ on the CPU"]),
        ("model = torch.jit.script(model)", "model(x)", ["float32", "compiled"]),
        ("torch.compile(model, disable=True); torch.compile(model, backend='aot_eager')", "", []),
    ],
)
def test_what_a_trace_says_of_operators(setup: str, work: str, told: list[str]) -> None:
    """The precision of products on a GPU, what is not counted though its work outgrows its bytes, and TorchScript."""
    trace = trace_of(PROGRAM, setup, work, is_fake=True, device=Device.CUDA)
    facts = [op.dtype if op.flops else op.name for op in trace.steps[0].operators if op.flops or not op.is_counted]
    assert [*facts, *(["compiled"] if trace.is_compiled else [])] == told


def test_small_work_on_the_host_takes_no_kernel() -> None:
    """Adam's steps, which are on the CPU, are read for each parameter; a batch is augmented there."""
    adam = "model.weight.grad = x;;adam = torch.optim.Adam([model.weight])"
    work = "adam.step(); torch.ones(1).uniform_().add(1).item(); (y.long() + 1).sum()"
    trace = trace_of(PROGRAM, adam, work, is_fake=True, device=Device.CUDA)
    names = {operator.name for operator in trace.steps[0].operators}
    assert {"aten._foreach_lerp_", "aten._to_copy", "aten.sum"} <= names
    assert not {"aten._local_scalar_dense", "aten.uniform_", "aten.ones"} & names


def test_copies_between_cpu_and_gpu_are_told_from_copies_on_the_gpu() -> None:
    """By `to` and its like, and from and into pinned memory; not those of a bucket that torch makes in C++."""
    setup = "ddp = nn.parallel.DistributedDataParallel(model);;pinned = torch.ones(64, 64).pin_memory()"
    work = "x.cpu().cuda(); pinned.copy_(x); x.copy_(pinned); x.copy_(y[0, :, :1])"
    step = "with torch.enable_grad(): ddp(x).sum().backward()"
    trace = trace_of(PROGRAM, setup, f"{work};;{step}", is_fake=True, device=Device.CUDA)
    copies = [operator for operator in trace.steps[0].operators if operator.is_transfer]
    assert {operator.name: operator.count for operator in copies} == {"aten._to_copy": 2, "aten.copy_": 2}
    assert {operator.size_bytes for operator in copies} == {2 * 64 * 64 * 4}


@pytest.mark.parametrize("is_fake", [True, False])
def test_arithmetic_is_counted(is_fake: bool) -> None:
    """Of products and convolutions of groups, in place, in inference mode; of attention what a causal mask leaves."""
    attention = 4 * 2 * 2 * 64 * 64 * 16  # heads, two products, positions and their width
    works = {
        "F.grouped_mm(x.bfloat16(), y, offs=ends)": 2 * 64 * 64 * 32,
        "torch._int_mm(x.to(torch.int8), x.to(torch.int8))": PRODUCT,
        "x.clone().addmm_(x, x)": PRODUCT,
        "torch.ops.aten.convolution_backward(image, image, conv.weight[:, :1], None, *GROUPS)": 2 * 2 * 64 * 4 * 9,
        "with torch.enable_grad(): steps = nn.LSTM(64, 64, device='cuda')(x)[0]": 8 * PRODUCT,
        "steps.backward(torch.ones_like(steps))": 16 * PRODUCT,
        "with torch.inference_mode(): F.linear(x, x) @ x": 2 * PRODUCT,
        "torch.cdist(x, x)": PRODUCT,
        "torch.cdist(x, x, p=1.0)": PRODUCT,
        "nn.MultiheadAttention(64, 4, 0.1, device='cuda')(x, x, x, need_weights=False)": 4 * PRODUCT,
        "F.scaled_dot_product_attention(heads, heads, heads, None, 0.1)": 2 * attention,  # one is of the line above
        "F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)": attention * 65 // 128,
        "F.scaled_dot_product_attention(heads, heads[:, :, :1], heads[:, :, :1], is_causal=True)": attention // 64,
        "F.scaled_dot_product_attention(heads[:, :, :1], heads, heads, is_causal=True)": attention // 64**2,
    }
    groups = "GROUPS = [1] * 2, [1] * 2, [1] * 2, False, [0] * 2, 4, [True, True, False]"
    step = trace_of(PROGRAM, groups, ";;".join(works), is_fake=is_fake, device=Device.CUDA).steps[0]
    counted = [operator.flops * operator.count for operator in step.operators if operator.flops]
    assert sorted(counted) == sorted(works.values())
    assert all(operator.is_counted for operator in step.operators)


def test_a_recurrent_layer_is_one_operator_on_a_gpu() -> None:
    """Of any kind and direction, and of sequences of different lengths, as by cuDNN; with its backward pass."""
    works = {
        "nn.GRU(64, 64, num_layers=2, dropout=0.1, device='cuda')(x)[0].sum().backward()": [6, 6, 12, 12],
        "nn.RNN(64, 64, bidirectional=True, bias=False, device='cuda')(x)[0].sum().backward()": [2, 2, 4, 4],
        "steps = nn.LSTM(64, 64, batch_first=True, device='cuda')(padded)[0]._replace(unsorted_indices=None); "
        "unpacked, lengths = nn.utils.rnn.pad_packed_sequence(steps, True, total_length=40); "
        "assert unpacked.is_cuda and unpacked.shape == (4, 40, 64) and lengths.tolist() == [32, 16, 12, 4]; "
        "unpacked.sum().backward()": [8, 16],
        "nn.LSTM(64, 128, bias=False, proj_size=64, device='cuda')(x)[0].sum().backward()": [16, 32, 2, 2, 2],
    }
    packed = "nn.utils.rnn.pack_padded_sequence(x.new_ones(4, 32, 64), torch.tensor([16, 32, 4, 12]), True, False)"
    program = [f"with torch.enable_grad(): padded = {packed}; {work}" for work in works]
    step = trace_of(PROGRAM, "", ";;".join(program), is_fake=True, device=Device.CUDA).steps[0]
    counted = [
        operator.flops // PRODUCT for operator in step.operators for _ in range(operator.count) if operator.flops
    ]
    assert sorted(counted) == sorted(one for of_work in works.values() for one in of_work)
    assert {operator.name for operator in step.operators if operator.flops} == {
        "aten.mkldnn_rnn_layer",
        "aten.mkldnn_rnn_layer_backward",
        "aten.mm",  # of projections
    }


def test_without_cudnn_a_recurrent_layer_has_operators_of_each_step() -> None:
    """Their gradient has a gradient, unlike that of cuDNN's operator."""
    ones = "torch.ones(8, 4, 64, device='cuda', requires_grad=True)"
    layer = "nn.{}(64, 64, device='cuda')(given)[0].sum()"
    works = [
        f"with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False): "
        f"torch.autograd.grad({layer.format(kind)}, given, create_graph=True)[0].pow(2).sum().backward()"
        for kind in ("GRU", "LSTM")
    ]
    step = trace_of(PROGRAM, f"given = {ones}", ";;".join(works), is_fake=True, device=Device.CUDA).steps[0]
    assert {operator.name for operator in step.operators if operator.flops} == {"aten.addmm", "aten.mm"}


LSTM_CELL = "c = nn.LSTMCell(64, 64, device='cuda'); h, s = c(x, (x, x)); c(x, (h, s))[0].sum().backward()"
GRU_CELL = "c = nn.GRUCell(64, 64, bias=False, device='cuda'); c(x, c(x)).sum().backward()"


@pytest.mark.parametrize(
    ("cell", "context", "gates", "dtype"),
    [
        (LSTM_CELL, "", 4, "float32"),
        (LSTM_CELL, "torch.autocast('cuda', torch.half), ", 4, "float16"),
        (GRU_CELL, "", 3, "float32"),
    ],
)
def test_a_cell_is_two_products_and_one_operator_on_a_gpu(cell: str, context: str, gates: int, dtype: str) -> None:
    """Forward; its backward pass is one operator, and products for both weights and the state of an earlier cell."""
    work = f"with {context}torch.enable_grad(): {cell}"
    operators = trace_of(PROGRAM, "", work, is_fake=True, device=Device.CUDA).steps[0].operators
    products = [operator for operator in operators if operator.flops]
    assert sum(operator.count for operator in products) == 2 * 2 + 2 + 3
    assert {(operator.flops, operator.dtype) for operator in products} == {(gates * PRODUCT, dtype)}
    assert sum(operator.count for operator in operators if "_thnn_fused" in operator.name) == 2 + 2
    assert not {"aten.sigmoid", "aten.tanh"} & {operator.name for operator in operators}


def test_cells_of_torchscript_are_recorded() -> None:
    """TorchScript calls the operators of a CPU in C++; their products are those of a GPU."""
    setup = "cells = [torch.jit.script(kind(64, 64).cuda()) for kind in (nn.LSTMCell, nn.GRUCell)]"
    trace = trace_of(PROGRAM, setup, "for cell in cells: cell(x)", is_fake=True, device=Device.CUDA)
    assert trace.is_compiled
    assert trace.steps[0].flops == 2 * (4 + 3) * PRODUCT


SIZES = {
    "F.linear(x[:32], x); x[:, :16].mm(x[:16])": [Product(32, 64, 64), Product(64, 64, 16)],
    "F.grouped_mm(x.bfloat16(), y, offs=ends)": [Product(32, 32, 64, 2)],
    "torch.bmm(y, y.mT); torch.baddbmm(torch.zeros_like(y[..., :8]), y, y[:, :32, :8])": [
        Product(64, 64, 32, 2),
        Product(64, 8, 32, 2),
    ],
    "conv(image)": [Product(36, 4, 36)],
    "torch.ops.aten.convolution_backward(image, image, conv.weight[:, :1], None, *GROUPS)": [],
    "F.scaled_dot_product_attention(*[heads.half()] * 3, is_causal=True)": [Attention(1, 4, 64, 64, 16)],
    "varlen_attn(*[heads[0].half()] * 3, ends, ends, 48, 48)": [Attention(1, 64, 4, 48, 16)],
    "torch.ops.aten._flash_attention_forward(*[heads.half()] * 3, None, None, 4, 4, 0.0, False, False)": [
        Attention(1, 64, 4, 4, 16)
    ],
}


def test_products_and_attention_have_sizes() -> None:
    """From which `ringsim step` takes the times of their kernels; FLOPs of the backward pass count its products."""
    groups = "GROUPS = [1] * 2, [1] * 2, [1] * 2, False, [0] * 2, 4, [True, True, False]"
    setup = f"{groups}; from torch.nn.attention.varlen import varlen_attn"
    trace = trace_of(PROGRAM, setup, ";;".join(SIZES), is_fake=True, device=Device.CUDA)
    sizes = [operator.product or operator.attention for operator in trace.steps[0].operators]
    assert [size for size in sizes if size] == [size for sizes in SIZES.values() for size in sizes]


ROWS = 32 * 256  # bytes of the rows that are looked up, of 4,096 in a table
LOOKUPS = {  # bytes by operator, with 8-byte indices
    "F.embedding(rows, table)": ("aten.embedding", 32 * 8 + 2 * ROWS),
    "F.embedding_bag(rows.view(4, 8), table)": ("aten._embedding_bag_forward_only", 72 * 8 + ROWS + 4 * 256),
    "table[rows]": ("aten.index", 32 * 8 + 2 * ROWS),
    "table.index_select(1, rows)": ("aten.index_select", 32 * 8 + 2 * 4096 * 32 * 4),
    "table.gather(1, rows.view(-1, 1))": ("aten.gather", 32 * 8 + 2 * 32 * 4),
    "table.scatter_add_(1, rows.view(-1, 1), x[:32, :1])": ("aten.scatter_add_", 32 * 8 + 3 * 32 * 4),
    "table[rows] = x[:32]": ("aten.index_put_", 32 * 8 + 3 * ROWS),
    "F.nll_loss(table, rows.repeat(128))": ("aten.nll_loss_forward", 4096 * (8 + 4) + 2 * 4),
    "table[table[:, 0] > 0] = x[:1]": ("aten.index_put_", 4096 + 2 * 4096 * 256 + 256),
}


def test_lookups_touch_the_rows_that_they_name() -> None:
    """And not the whole table, unless a mask says only in data which rows these are."""
    setup = "table, rows = torch.zeros(4096, 64, device='cuda'), torch.arange(32, device='cuda')"
    trace = trace_of(PROGRAM, setup, ";;".join(LOOKUPS), is_fake=True, device=Device.CUDA)
    names = {name for name, _ in LOOKUPS.values()}
    found = [(operator.name, operator.size_bytes) for operator in trace.steps[0].operators if operator.name in names]
    assert found == list(LOOKUPS.values())


MASKED = 3 * ROWS + 2 * 32 * 8  # with the indices of what is read and of what is made
UPDATES = {
    "SGD": {("aten.add_", 3 * ROWS + 32 * 8): 1},
    "Adagrad": {("aten.add_", 3 * ROWS + 32 * 8): 2, ("aten.sparse_mask", MASKED): 1},
    "SparseAdam": {("aten.add_", 3 * ROWS + 32 * 8): 3, ("aten.sparse_mask", MASKED): 2},
}


@pytest.mark.parametrize("kind", UPDATES)
def test_sparse_gradients_touch_the_rows_that_they_have(kind: str) -> None:
    """Also after `coalesce`, which leaves at most as many, and on the GPU."""
    setup = "table = nn.Embedding(4096, 64, sparse=True, device='cuda'); ids = torch.arange(32, device='cuda');;"
    setup += f"updating = torch.optim.{kind}(table.parameters(), lr=0.1)"
    work = "with torch.enable_grad(): table(ids).sum().backward();;updating.step(); updating.zero_grad()"
    operators = trace_of(PROGRAM, setup, work, is_fake=True, device=Device.CUDA).steps[0].operators
    found = {(operator.name, operator.size_bytes): operator.count for operator in operators}
    assert UPDATES[kind].items() <= found.items()
    assert all(operator.is_counted for operator in operators)
