"""torch.compile with --fake: kernels, their bytes, what is saved for the backward pass, and what is not captured."""

import pytest

from ringsim.traces import FUSED, Device, ProgramTrace, TraceEvent, TraceEventKind
from tests.collectives.recording.recorded import IMPORTS, trace_of

PROGRAM = f"""{IMPORTS}
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4, device="cuda"))])
x, weight = torch.randn(256, 128, device="cuda"), torch.ones(128, device="cuda")
half, labels = x.bfloat16(), torch.randint(0, 128, (256,), device="cuda")
setup, *works = (text.replace(";;", chr(10)) for text in sys.argv[1:])
exec(setup)
for _ in range(6):
    for work in works:
        exec(work)
        dist.barrier()
    optimizer.step()
"""
N = 256 * 128  # elements of x
# Functions of x, and the bytes of their kernels. Inputs and outputs count once; what passes from one pointwise
# operator, or row, to the next one does not count.
FUNCTIONS = {
    "15 * torch.tanh(x / 15)": {"div, tanh, mul": 2 * 4 * N},
    "half + x": {"add": (2 + 4 + 4) * N},
    "x.t().relu() + x.t().contiguous()": {"relu, clone, add": 2 * 4 * N},
    # Two results of one input, and two that stay within the kernel.
    "(x.sin(), x.cos() * x.sin().exp())": {"sin, cos, exp, mul": 3 * 4 * N},
    "F.rms_norm(x, (128,), weight)": {"pow, mean, add, rsqrt, mul": 2 * 4 * N + 4 * 128},
    "F.layer_norm(x, (128,))": {"var_mean, add, rsqrt, sub, mul": 2 * 4 * N},
    "x.softmax(1)": {"amax, sub, exp, sum, div": 2 * 4 * N},
    # Sums of columns are not known before all rows are read, and so another kernel reads the rows again.
    "x / x.sum(0)": {"sum": 4 * (N + 128), "div": 4 * (2 * N + 128)},
    # Sums of columns are one kernel, which computes again what the sums of rows need as well.
    "(lambda y: (y.sum(1), y.sum(0), (y * y).sum(0)))(half + x)": {
        "add, sum": 6 * N + 4 * 256,
        "add, sum, mul": 6 * N + 2 * 4 * 128,
    },
    # Dynamo knows what the GPU answers.
    "x * torch.tensor(2.0, device='cuda') + torch.cuda.get_device_properties(x.get_device()).major": {
        "_to_copy, mul, add": 2 * 4 * N + 4
    },
    "x + 1 if torch.cuda.is_available() and torch.cuda.current_device() == 0 else x.sin()": {"add": 2 * 4 * N},
    "F.gelu(x @ x.t()).sum()": {"mul, erf, add, sum": 4 * (256**2 + 1)},
    # Each half of a row is computed from both, as in rotary embeddings.
    "torch.cat([x[:, :64] * 2 - x[:, 64:], x[:, 64:] + x[:, :64]], 1)": {"mul, sub, add, cat": 2 * 4 * N},
    "F.embedding(labels, x)": {"embedding": 8 * 256 + 2 * 4 * N},
    "F.dropout(x, 0.1)": {"rand, gt, mul": 2 * 4 * N},
    # Methods that are replaced where tensors are on CUDA as far as Python sees.
    "half.type_as(x) + half.to(x.device, x.dtype, copy=True).cuda() + torch.zeros(128, device='cuda')": {
        "convert_element_type, clone, add, full": (2 + 4) * N
    },
    # A norm whose casts C++ makes for the CPU.
    "x.sin() if F.rms_norm(half, (128,)).is_cuda else x.cos()": {"sin": 2 * 4 * N},
    "x.view(-1)[:128].view(2, 64)": {},
    "x.add_(1).mul_(2) is None": {"add, mul, copy_": 2 * 4 * N},
    "torch._foreach_mul_(torch._foreach_add([x, x], 1), 2)": {"add, mul": 3 * 4 * N},
}


def recorded(setup: str, *works: str, is_fake: bool = True) -> ProgramTrace:
    """Return the trace of a program for GPUs: the first text runs once, the others in each step, then a barrier."""
    return trace_of(PROGRAM, setup, *works, is_fake=is_fake, device=Device.CUDA)


def kernels(event: TraceEvent) -> dict[str, int]:
    """Return the bytes of the fused kernels of a computation, by the names of their operators."""
    fused = [operator for operator in event.operators if operator.name.startswith(FUSED)]
    return {kernel.name[len(FUSED) : -1]: kernel.count * kernel.size_bytes for kernel in fused}


@pytest.mark.slow
def test_bytes_of_kernels() -> None:
    """Of functions without gradients."""
    setup = "parts = [" + ", ".join(f"torch.compile(lambda: {function})" for function in FUNCTIONS) + "]"
    works = [f"with torch.no_grad(): parts[{index}](); x.sort()" for index in range(len(FUNCTIONS))]
    trace = recorded(setup, *works)
    computations = [event for event in trace.steps[0].events if event.operators]
    found = dict(zip(FUNCTIONS, map(kernels, computations), strict=False))
    assert found == FUNCTIONS
    assert not trace.is_compiled


NET = """
class Net(nn.Sequential):
    def forward(self, x):
        return self[2](self[1](self[0](x)))
make = lambda: Net(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)).cuda()
models = []
"""
# The kernel of a GELU of 256 x 512 numbers.
GELU = "mul, erf, add", 2 * 4 * 256 * 512


# Ways to compile a model, and the calls of torch.distributed that it makes.
FORMS = {
    "model = torch.compile(net, mode='max-autotune', fullgraph=True)": 0,
    "model = net;;model.compile()": 0,
    "model = torch._dynamo.optimize('inductor')(net)": 0,
    "@torch.compile(dynamic=True);;def model(x, net=net):;;    return net(x)": 0,
    "model = torch.compile(lambda x, net=net: torch.compile(net)(x))": 0,
    "model = torch.compile(lambda x, net=net: checkpoint(net, x, use_reentrant=False))": 0,
    "model = DDP(torch.compile(net))": 1,
    "model = torch.compile(DDP(net))": 1,
    "model = nn.Sequential(net, make());;for part in model: part.compile(); fully_shard(part)": 4,
    "model = nn.Sequential(nn.Linear(128, 128), net).cuda();;model[1].compile(); fully_shard(model)": 2,
    # As in reality, a graph ends at what Dynamo cannot capture.
    "@torch.compile;;def model(x, net=net):;;    x = net(x);;    torch._dynamo.graph_break();;    return x * 2": 0,
}


@pytest.mark.slow
def test_forms_of_compiling() -> None:
    """A module, a function, nested, with recomputation, within and around data parallelism: with all its calls."""
    setup = ";;".join([NET, *(f"net = make();;{form};;models.append(model)" for form in FORMS)])
    trace = recorded(setup, *(f"models[{index}](x).sum().backward()" for index in range(len(FORMS))))
    calls = dict.fromkeys(FORMS, 0)
    remaining = iter(FORMS)
    form, found = next(remaining), []
    for event in trace.steps[0].events:
        if event.kind is TraceEventKind.COMPUTE:
            found += kernels(event).items()
            assert not any("gelu" in operator.name for operator in event.operators), form
        elif event.kind is TraceEventKind.CALL and trace.steps[0].calls[event.call].collective != "barrier":
            calls[form] += 1
        elif event.kind is TraceEventKind.CALL:
            assert GELU in found, form
            form, found = next(remaining, ""), []
    assert calls == FORMS
    assert not trace.is_compiled


def test_memory_is_that_of_the_compiled_graph() -> None:
    """The backward pass computes cheap results again; eager mode saves every second one of six."""
    setup = "w = nn.Parameter(x.clone());;def chain(x): return x.exp().sin().tanh().sin().tanh().sin().sum();;"
    beside = {}  # the bytes at the peak, beside those that are left at the end
    for part in ("chain", "torch.compile(chain)"):
        trace = recorded(f"{setup}part = {part}", "w.grad = None;;part(w).backward()")
        assert trace.memory is not None
        beside[part] = trace.memory.peak.total - trace.memory.end.total
    names = [kernel for event in trace.steps[0].events for kernel in kernels(event).values()]
    assert names == [4 * (N + 1), 4 * (2 * N + 1)]  # both passes read w, and the second one writes its gradient
    assert beside["torch.compile(chain)"] == 4 + 4  # the loss and its gradient
    assert beside["chain"] >= 3 * 4 * N


def test_an_optimizer_is_captured_once() -> None:
    """An optimizer whose learning rate changes with each step."""
    setup = (
        "w = nn.Parameter(x.clone());;w.grad = x;;other = torch.optim.SGD([w], 1.0);;step = torch.compile(other.step)"
    )
    count = "torch._dynamo.utils.counters['stats']['unique_graphs']"
    trace = recorded(setup, f"other.param_groups[0]['lr'] /= 2;;step();;assert {count} == 1")
    assert {"add, copy_": 3 * 4 * N} in [kernels(event) for event in trace.steps[0].events]


@pytest.mark.slow
def test_compiled_autograd_leaves_gradients() -> None:
    """On the GPU, each copied to the strides of its parameter, which reads and writes it once."""
    setup = "from torch._dynamo import compiled_autograd;;w = nn.Parameter(x.clone())"
    enabled = "compiled_autograd._enable(torch.compile(backend='inductor'))"
    work = f"w.grad = None;;with {enabled}: (x @ w.t()).sum().backward()"
    trace = recorded(setup, work)
    assert trace.memory is not None
    assert trace.memory.end.gradients == 4 * N
    assert {"copy": 2 * 4 * N} in [kernels(event) for event in trace.steps[0].events]


@pytest.mark.slow
def test_other_lengths_are_captured_again() -> None:
    """Steps of which each has a new length: the one with the median; what is captured holds no tensor longer."""
    setup = """
w, lengths = nn.Parameter(x.clone()), iter(range(192, 200))
@torch.compile(dynamic=True)
def chain(x, w):
    return (x @ w.t()).exp().sin().tanh().sum()
def part():
    y = torch.randn(next(lengths), 128, device="cuda")
    torch._dynamo.mark_dynamic(y, 0)
    w.grad = None
    chain(y, w).backward()
"""
    trace = recorded(setup, "part()")
    assert not trace.is_compiled
    assert trace.steps[0].flops == 2 * 2 * 195 * 128 * 256
    assert trace.memory is not None
    # The scores and their gradient; y, the loss and its gradient; then the gradient of w.
    assert trace.memory.peak.total - trace.memory.end.total == 4 * (2 * 195 * 256 + 195 * 128 + 2) - 4 * N


def test_scores_of_all_tokens() -> None:
    """Soft-capped scores: the passes read them once in bfloat16, and the backward pass writes their gradient."""
    setup = """
out = nn.Linear(128, 1024, bias=False).cuda().bfloat16()
@torch.compile
def loss(x, y):
    z = out(x).float()
    return F.cross_entropy(15 * torch.tanh(z / 15), y)
"""
    step = recorded(setup, "loss(half, labels).backward(); out.weight.grad = None").steps[0]
    traffic = sum(size_bytes for event in step.events for size_bytes in kernels(event).values())
    scores, per_token = 3 * 2 * 256 * 1024, 256 * (8 + 4 + 4)  # labels, maxima, logarithms of sums
    assert scores + 2 * per_token <= traffic <= scores + 4 * per_token
    products = [operator for operator in step.operators if operator.flops]
    assert sum(operator.flops * operator.count for operator in products) == 2 * 2 * 256 * 128 * 1024


@pytest.mark.slow
def test_recomputed_attention_with_a_mask_of_known_documents() -> None:
    """Two documents of 128 tokens keep half of the blocks; the forward pass runs twice, with its dropout."""
    setup = """
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
w, ids = nn.Parameter(torch.ones(2, 4, 256, 64, device="cuda")), torch.arange(256, device="cuda") % 128
attend = lambda mask: flex_attention(F.dropout(w, 0.1), w, w, block_mask=mask)
@torch.compile
def part(ids):
    documents = ids.eq(0).cumsum(0)
    is_one = lambda b, h, q, k: documents[q] == documents[k]
    mask = create_block_mask(is_one, None, None, 256, 256, device="cuda")
    return checkpoint(attend, mask, use_reentrant=False).sum()
"""
    trace = recorded(setup, "w.grad = None;;part(ids).backward()")
    assert not trace.is_compiled
    assert trace.steps[0].flops == (2 + 2.5) * 4 * 2 * 4 * 64 * 256 * 256 / 2
    assert {"eq, cumsum", "rand, gt, mul"} <= {name for event in trace.steps[0].events for name in kernels(event)}


def test_integers_that_compiled_code_writes() -> None:
    """They have their values, also in steps before the watched one."""
    setup = """
count, numbers = torch.zeros(1, dtype=torch.long, device="cuda"), iter(range(1, 9))
half_known = torch.compile(lambda y: (count.add_(1), y * count))
"""
    recorded(setup, "half_known(x); assert count.item() == next(numbers)")


@pytest.mark.slow
def test_a_policy_sees_the_operators_of_compiled_code() -> None:
    """Of compiled code within a checkpoint, modes see products, into memory, as when inductor's code runs."""
    setup = """
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
seen, w = set(), nn.Parameter(x.clone())
def policy(context, operator, *_, **__):
    seen.add(str(operator))
    return CheckpointPolicy.PREFER_RECOMPUTE
contexts = lambda: create_selective_checkpoint_contexts(policy)
inner = torch.compile(lambda y: ((y.sin() @ weight) + 1).cos() @ y)
outer = lambda: checkpoint(inner, w, use_reentrant=False, context_fn=contexts).sum()
weight = torch.ones(128, 256, device="cuda")
"""
    step = recorded(setup, "outer().backward(); assert seen - {'aten.permute.default'} == {'aten.mm.out'}, seen").steps[
        0
    ]
    assert step.flops == (2 + 2 + 3) * 2 * 256 * 128 * 256  # twice forward; weight needs no gradient


ATTENTION = """
from torch.nn.attention.flex_attention import BlockMask, flex_attention
w, bias = (nn.Parameter(torch.ones(shape, device="cuda")) for shape in ((2, 4, 256, 64), (4, 256)))
def attend(mask=None):
    w.grad = bias.grad = None
    return flex_attention(w, w, w, lambda score, b, h, q, k: score + bias[h, (q - k).abs()], mask).sum()
@torch.compile
def attend_to_unknown_blocks():
    counts, indices = torch.randn(1, 1, 2, device="cuda").int(), torch.zeros(1, 1, 2, 2, device="cuda").int()
    return attend(BlockMask.from_kv_blocks(counts, indices))
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", ["attend", "torch.compile(attend)"])
def test_a_learned_bias_of_scores_gets_its_gradient(part: str) -> None:
    """Also of code that is not compiled."""
    trace = recorded(f"{ATTENTION}part = {part}", "part().backward()")
    assert trace.memory is not None
    assert trace.memory.end.gradients == 4 * (2 * 4 * 256 * 64 + 4 * 256)
    assert trace.steps[0].flops == (2 + 2.5 * 2) * 2 * 4 * 64 * 256 * 256 * 2


def test_attention_to_unknown_blocks_is_not_counted() -> None:
    """`ringsim step` says so: the whole square would be no lower bound."""
    step = recorded(ATTENTION, "attend_to_unknown_blocks().backward()").steps[0]
    assert step.flops == 0
    uncounted = {operator.name for operator in step.operators if not operator.is_counted}
    assert uncounted == {"ringsim.flex_attention", "ringsim.flex_attention_backward"}


def test_numbers_on_the_cpu_are_known() -> None:
    """A shape that the program computes from one, as dion does from its ratio of oversampling."""
    setup = "part = torch.compile(lambda ratio: ratio * 384)"
    trace = recorded(setup, "assert part(torch.tensor(1.25)) == 480")
    assert not trace.is_compiled


def test_rows_that_are_chosen_get_gradients() -> None:
    """Into zeros that torch's C++ makes on the CPU while the backward pass is captured."""
    setup = "part, w = torch.compile(lambda w: w[labels] + w.index_select(0, labels)), nn.Parameter(x.clone())"
    assert not recorded(setup, "part(w).sum().backward(); assert w.grad.is_cuda").is_compiled


def test_what_cannot_be_captured_is_a_range() -> None:
    """Its operators are recorded one by one, and the trace says so; the program continues."""
    broken = "from collectives.recording import compiled; compiled.plan = lambda graph: graph.nothing;;"
    trace = recorded(f"{broken}part = torch.compile(lambda x: x.sin().cos())", "part(x)")
    assert trace.is_compiled
    assert {"aten.sin", "aten.cos"} <= {operator.name for operator in trace.steps[0].operators}
    differs = "{}[1] if torch.compiler.is_dynamo_compiling() else x.sin().cos()"  # raises an error while captured only
    trace = recorded(f"part = torch.compile(lambda x: {differs})", "part(x)")
    assert trace.is_compiled
    trace = recorded("part = torch.compile(lambda x: x.sin().cos())", "part(x)", is_fake=False)
    assert trace.is_compiled
    assert {"aten.sin", "aten.cos"} <= {operator.name for operator in trace.steps[0].operators}


def test_kernels_of_compiled_code_are_told_from_calls_of_the_program() -> None:
    """By which `ringsim step` knows how long the CPU takes to launch them; also of products and the backward pass."""
    setup = "function = torch.compile(lambda x: (x @ x.t()).relu()); x.requires_grad_()"
    trace = trace_of(PROGRAM, setup, "function(x).sum().backward(); x.grad = None", is_fake=True, device=Device.CUDA)
    in_graph = {(operator.name.partition("(")[0], operator.in_graph) for operator in trace.steps[0].operators}
    assert {("aten.mm", True), ("fused", True), ("aten.sum", False)} <= in_graph
    assert not {("aten.mm", False), ("fused", False), ("aten.sum", True)} & in_graph


def test_attention_is_counted_for_the_lengths_of_each_step() -> None:
    """Of sequences in one tensor, also in the steps in which operators are only counted."""
    setup = """
q, at = torch.ones(256, 1, 64, device="cuda").bfloat16(), iter([64, 128] * 9)
attention = torch.ops.aten._flash_attention_forward
attend = torch.compile(lambda ends: attention(q, q, q, ends, ends, 256, 256, 0.0, False, False)[0])
"""
    work = "attend(torch.tensor([0, next(at), 256], dtype=torch.int32).cuda())"
    trace = trace_of(PROGRAM, setup, work, is_fake=True, device=Device.CUDA, num_steps=4)
    of_pairs = [step.flops / (4 * 64) for step in trace.steps]
    assert of_pairs == [64**2 + 192**2, 2 * 128**2] * 2


def test_a_replayed_graph_runs_the_kernels_of_compiled_code_again() -> None:
    """The compiled code has run before the capture, as torch asks for."""
    setup = """
graph, part = torch.cuda.CUDAGraph(), torch.compile(lambda: (x @ x.t()).relu())
part()
with torch.cuda.graph(graph): part()
"""
    (step,) = recorded(setup, "graph.replay()").steps
    assert step.flops == 2 * 256 * 128 * 256
    assert next(kernels(event) for event in step.events if event.operators) == {"relu": 2 * 4 * 256**2}


def test_kernels_of_a_data_loaders_worker_are_not_of_the_step() -> None:
    """A worker is another process, whose operators take no time of this one, compiled or not."""
    setup = """
part = torch.compile(lambda y: y.relu())
class Rows:
    __len__, __getitem__ = lambda _: 8, lambda _, index: part(torch.ones(256, 128))
"""
    work = "next(iter(torch.utils.data.DataLoader(Rows(), None, num_workers=1)))"
    (step,) = recorded(setup, work).steps
    assert not any(operator.in_graph for event in step.events for operator in event.operators)


def test_kernels_of_the_cpu_are_not_those_of_the_gpu() -> None:
    """Large ones, such as an offloaded optimizer's, are not counted; small ones take no time."""
    setup = "part = torch.compile(lambda y: y.sin() + 1)"
    (step,) = recorded(setup, "part(torch.ones(2**18)); part(torch.ones(256)); part(x)").steps
    told = {operator.name: operator.is_counted for operator in step.operators if operator.in_graph}
    assert told == {f"{FUSED}sin, add) on the CPU": False, f"{FUSED}sin, add)": True}
    assert sum(operator.count for operator in step.operators if operator.in_graph) == 2
