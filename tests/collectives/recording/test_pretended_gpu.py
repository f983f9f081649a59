"""The answers of torch.cuda, NCCL's process group and their neighbours to a recorded program."""

import pytest
import torch
from torch import nn

from collectives.recording import pretended_gpu
from ringsim.traces import Device
from tests.collectives.recording.recorded import HEAD, recorded, trace_of

ANSWERED = """
import datetime
from types import SimpleNamespace
from torch.distributed import ProcessGroupNCCL
from torch.distributed.distributed_c10d import _set_pg_timeout
cuda, seconds = torch.cuda, datetime.timedelta(seconds=9)
assert not cuda.is_initialized() and cuda.current_device() == 0 and cuda.is_initialized()
rank, ones, layer = dist.get_rank(), torch.ones(3, device="cuda"), nn.Linear(3, 3).cuda()

stream, event = cuda.Stream(priority=-1), cuda.Event(enable_timing=True)
assert stream.priority == -1 and stream.cuda_stream != cuda.default_stream().cuda_stream == 0
with cuda.stream(stream):
    assert torch._C._cuda_getCurrentRawStream(0) == stream.cuda_stream  # extensions read it when they are imported
assert stream.device == torch.device("cuda", 0) == event.device and cuda.Stream.priority_range() == (0, -3)
with torch.Stream("cuda") as entered:
    assert cuda.current_stream() is entered
assert cuda.current_stream() is cuda.default_stream() and cuda.ExternalStream(0, device=0).query()
assert len(cuda.default_generators) == 8 and cuda.default_generators[0].get_state().dtype == torch.uint8

assert cuda.is_initialized()  # programs choose the device by it

properties = cuda.get_device_properties(0)
assert (properties.warp_size, properties.L2_cache_size) == (32, 50 * 2**20) and properties.uuid
assert properties.shared_memory_per_block < properties.shared_memory_per_block_optin
assert cuda.clock_rate() > 1000 and 0 < cuda.temperature() < 60 and cuda.power_draw() > 1000
assert cuda.device_memory_used() == cuda.utilization() == 0 and torch.accelerator.get_memory_info()[0] > 2**30
assert cuda.memory._snapshot()["segments"] == cuda.memory_snapshot() == []
assert cuda.memory.get_allocator_backend() == "native" and cuda.cudart().cudaProfilerStart() == 0

assert cuda.FloatTensor([1.0, 2.0]).dtype == torch.float32 and cuda.LongTensor(2, 3).shape == (2, 3)
assert isinstance(ones, cuda.FloatTensor) and not isinstance(ones, cuda.HalfTensor)
assert ones.type("torch.cuda.HalfTensor").dtype == ones.type(cuda.HalfTensor).dtype == torch.float16
torch.set_default_tensor_type(cuda.DoubleTensor)
assert torch.zeros(2).dtype == torch.float64
torch.set_default_tensor_type(torch.FloatTensor), torch.set_default_device("cpu")
assert torch.zeros(3).pin_memory().is_pinned() and torch.empty(3, pin_memory=True).is_pinned()
assert not torch.zeros(3).is_pinned() and ones.share_memory_() is ones

graphed = cuda.make_graphed_callables(layer, (torch.zeros(2, 3, device="cuda"),))
graphed(torch.zeros(2, 3, device="cuda")).sum().backward()
assert (cuda.MemPool | None, cuda.ExternalStream | None)  # as in annotations
with cuda.use_mem_pool(cuda.MemPool()):
    nn.DataParallel(layer, device_ids=[0])(torch.zeros(2, 3, device="cuda"))

options = ProcessGroupNCCL.Options(is_high_priority_stream=True)
options.config.max_ctas = 4
group = dist.new_group([0, 1], backend="nccl", pg_options=options)
backend = dist.group.WORLD._get_backend(torch.device("cuda"))
assert isinstance(backend, ProcessGroupNCCL) and options.is_high_priority_stream
_set_pg_timeout(seconds), backend._set_default_timeout(seconds), group.monitored_barrier(seconds)
dist.monitored_barrier(timeout=seconds, wait_all_ranks=True), dist.barrier(device_ids=[0])
half = dist.split_group(split_ranks=[[0, 1, 2, 3], [4, 5, 6, 7]])
assert dist.get_process_group_ranks(half) == [0, 1, 2, 3] and dist.get_backend(half) == BACKEND
assert dist.group.WORLD.split_group([4, 5]) is None
told = subprocess.check_output(["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader"], text=True)
assert len(told.splitlines()) == 8 and "0, 0 MiB" in told and "GPU 7" in subprocess.getoutput("nvidia-smi -L")

def refused(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
import torch.distributed._symmetric_memory as symmetric
for call, name in (
    (lambda: cuda.memory.caching_allocator_alloc(8, 0), "torch.cuda.memory.caching_allocator_alloc"),
    (lambda: cuda.current_blas_handle(), "torch.cuda.current_blas_handle"),
    (lambda: cuda.tunable.get_results(), "torch.cuda.tunable.get_results"),
    (lambda: cuda.nccl.unique_id(), "torch.cuda.nccl.unique_id"),
    (lambda: torch._C._cuda_getCurrentBlasHandle(), "_cuda_getCurrentBlasHandle"),
    (lambda: symmetric.empty(4, device="cuda"), "symmetric memory"),
    (lambda: backend._comm_ptr(), "ProcessGroupNCCL._comm_ptr"),
    (lambda: ProcessGroupNCCL(None, 0, 8), "ProcessGroupNCCL()"),
):
    line = f"{name} needs a real GPU; ringsim trace only pretends to have one: leave it out there"
    assert refused(call) == line, refused(call)
assert not hasattr(torch._C, "_cuda_getCurrentBlasHandle") and not hasattr(torch._C, "no_such_name")
train()
"""


@pytest.mark.parametrize("is_fake", [False, True])
def test_the_pretended_gpu_answers_or_refuses(is_fake: bool) -> None:
    """Its answers are those of an idle H100; a refusal is one line that names the call."""
    trace_of(HEAD + f'BACKEND = "{"cpu:gloo,cuda:nccl"}"\n' + ANSWERED, is_fake=is_fake, device=Device.CUDA)


GRAPH = """
from collectives.recording.pretended_gpu import CudaGraph
launched = []
weights, batch = torch.ones(4, 4, device="cuda"), torch.zeros(2, 4, device="cuda")
graph, shared = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.graph(graph, stream=shared):
    summed = (batch @ weights).sum(1)
    CudaGraph.note(launched.append, "kernel of Triton")
    if CALLS:
        dist.all_reduce(summed)
optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))])
for step in range(9):
    batch.fill_(step)
    graph.replay()
    assert FAKE or summed.tolist() == [16.0 * step] * 2
    assert len(launched) == step + 1
    optimizer.param_groups[0]["params"][0].grad = summed.cpu()
    optimizer.step()
"""


@pytest.mark.parametrize("is_fake", [False, True])
def test_a_replayed_graph_runs_its_operators_again(is_fake: bool) -> None:
    """Each replay counts the product, and kernels of no operator; calls of process groups are refused."""
    (step,) = trace_of(f"{HEAD}FAKE, CALLS = {is_fake}, False\n{GRAPH}", is_fake=is_fake, device=Device.CUDA).steps
    assert step.flops == 2 * 2 * 4 * 4
    told = recorded(f"{HEAD}FAKE, CALLS = {is_fake}, True\n{GRAPH}", is_fake=is_fake, device=Device.CUDA)
    assert told.endswith("calls of a process group in a CUDAGraph cannot be recorded: capture what is between them")


@pytest.mark.parametrize("is_adamw", [False, True])
@pytest.mark.parametrize("kernel", ["fused_adam", "cpu_adam"])
def test_deepspeed_gets_the_adam_of_torch(monkeypatch: pytest.MonkeyPatch, kernel: str, is_adamw: bool) -> None:
    """Its optimizers compile kernels by default, which need a GPU or numbers; other extensions are compiled."""
    monkeypatch.setattr(pretended_gpu, "is_installed", lambda name: name == "deepspeed")
    monkeypatch.setattr("torch.utils.cpp_extension.load", lambda name, **_: f"compiled {name}")
    ((_, load),) = pretended_gpu.kernels_of_deepspeed()
    weights, gradients = torch.arange(1.0, 5).split(2), torch.tensor([0.5, -1.0, 2.0, 0.0]).split(2)
    expected = [nn.Parameter(weight.clone()) for weight in weights]
    kind = torch.optim.AdamW if is_adamw else torch.optim.Adam
    optimizer = kind(expected, lr=0.1, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.2)
    tensors = [gradients, weights, *(torch.zeros(4).split(2) for _ in range(2))]
    loaded, hyper = load(name=kernel), (0.1, 0.8, 0.9, 1e-4)
    if kernel == "cpu_adam":
        loaded.create_adam(3, *hyper, 0.2, is_adamw, False)
    for step in (1, 2):
        if kernel == "fused_adam":
            lists = [list(some) for some in tensors]
            loaded.multi_tensor_adam(2048, torch.zeros(1), lists, *hyper, step, int(is_adamw), 1, 0.2)
        else:
            for gradient, *others in zip(*tensors, strict=True):
                loaded.adam_update(3, step, *hyper, 0.2, True, others[0], gradient, *others[1:])
        for parameter, gradient in zip(expected, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(list(weights), [parameter.data for parameter in expected])
    assert load(name="cpu_lion") == "compiled cpu_lion"
