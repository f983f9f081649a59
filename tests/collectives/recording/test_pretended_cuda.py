"""`ringsim trace --device cuda`: programs for GPUs are recorded where there are none, with data and without."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ringsim.traces import Device, TraceCall, TracedStep, TraceEventKind
from tests.collectives.recording.recorded import HEAD, IMPORTS, LINE, recorded, trace_of

PROGRAM = f"""{IMPORTS}
import warnings
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, Dataset
WAY = sys.argv[1]
class Squares(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        return torch.full((16,), float(index)), index % 10
def layers():
    return nn.Sequential(*[nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(3)])
def ask():
    local_rank = int(os.environ["LOCAL_RANK"])
    assert torch.cuda.nccl.version() >= (2, 10)  # which DDP's hook for bfloat16 asks for
    assert torch.cuda.is_available() and torch.cuda.device_count() == int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device(local_rank)
    assert torch.cuda.current_device() == local_rank
    torch.cuda.set_stream(stream=torch.cuda.current_stream())
    assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() >= (8, 0)
    assert torch.cuda.get_device_properties(local_rank).total_memory > 2**30
    assert torch.cuda.get_device_name(0)
    assert torch.cuda.mem_get_info()[0] > torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated()
    assert torch.accelerator.current_accelerator().type == "cuda" and torch.accelerator.is_available()
    assert dist.is_nccl_available()
    torch.cuda.manual_seed(1), torch.cuda.manual_seed_all(1), torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(), torch.cuda.synchronize(), torch.cuda.nvtx.range_push("x")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        torch.ones(2).add(1)
    assert profiled.profiler.use_device is None and len(profiled.events()) > 0
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda", local_rank)
    places = [device, f"cuda:{{local_rank}}", "cuda", local_rank]
    ones = [torch.ones(2, device=place) for place in places] + [torch.ones(2).to(place) for place in places]
    ones += [torch.ones(2).cuda(), torch.ones(2).pin_memory().to(device, non_blocking=True)]
    ones += [torch.tensor([1, 1]).cuda(), torch.ones(2, pin_memory=True)]
    ones += [nn.Parameter(torch.ones(2)).cuda(local_rank), torch.ones(2).to(device=0)]
    with device:
        ones += [torch.ones(2), torch.zeros(2) + torch.ones(2, device="cuda")]
    thread = threading.Thread(target=lambda: ones.append(torch.ones(2, device="cuda")))
    thread.start(), thread.join()
    assert len(ones) == 17 and all(one.shape == (2,) for one in ones)
    is_fake = isinstance(torch.randn(2), torch._subclasses.FakeTensor)
    on_cuda = [one for one in ones if one.device == device and one.is_cuda and one.get_device() == local_rank]
    assert len(on_cuda) == (15 if is_fake else 0)  # not: pinned, and on device 0
    torch.randperm(4, generator=torch.Generator(device="cuda").manual_seed(1), device="cuda")
    assert isinstance(torch.default_generator, torch.Generator)
    weights = os.path.join(os.path.dirname(__file__), "weights.pt")
    torch.save(nn.Linear(2, 2).cuda().state_dict(), weights)
    places = (device, "cuda:0", {{"cpu": "cuda:0"}}) if os.path.exists(weights) else ()  # with --fake nothing is saved
    for place in places:
        nn.Linear(2, 2).load_state_dict(torch.load(weights, map_location=place))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    stream = torch.cuda.Stream(device=device, priority=-1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() is stream and stream is not torch.cuda.default_stream()
        ones[0].record_stream(stream)
    torch.cuda.current_stream().wait_event(stream.record_event())
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0
    nn.Linear(2, 2).to(local_rank)(ones[0])
def main():
    if WAY == "ddp":
        ask()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    size = dist.get_world_size()
    model = layers().to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if WAY == "fsdp2":
        for layer in (*model, model):
            fully_shard(layer, mesh=init_device_mesh("cuda", (size,)), mp_policy=policy)
    elif WAY == "hsdp":
        with torch.device("meta"):
            model = layers()
        mesh = init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("copies", "shards"))
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        model.to_empty(device="cuda")
    elif WAY == "fsdp1":
        with torch.device("meta"):
            model = layers()
        options = {{"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP, "use_orig_params": True}}
        options["param_init_fn"] = lambda layer: layer.to_empty(device=device, recurse=False)
        model = FullyShardedDataParallel(model, device_id=torch.cuda.current_device(), **options)
    elif WAY == "tensor":
        mesh = init_device_mesh("cuda", (size // 2, 2), mesh_dim_names=("data", "tensor"))
        for layer in model:
            parallelize_module(layer, mesh["tensor"], {{"0": ColwiseParallel(), "2": RowwiseParallel()}})
            fully_shard(layer, mesh=mesh["data"])
    else:
        model = torch.compile(model)
        with warnings.catch_warnings(action="always", record=True) as told:  # broadcast_buffers is deprecated
            options = {{"output_device": local_rank, "broadcast_buffers": False}}
            model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank], **options)
        assert {{warning.filename for warning in told}} <= {{__file__}}
        model.register_comm_hook(None, bf16_compress_hook)
    dtype = torch.float16 if WAY == "ddp" else torch.bfloat16
    scaler = torch.amp.GradScaler("cuda", enabled=WAY == "ddp", init_scale=1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=WAY != "tensor")
    @torch.compile(fullgraph=True)
    def loss_of(scores, target):
        return nn.functional.cross_entropy(scores.float(), target)
    for batch, target in DataLoader(Squares(), 4, shuffle=True, num_workers=2, pin_memory=True):
        batch, target = batch.to(device, non_blocking=True), target.cuda(local_rank, non_blocking=True)
        with torch.autocast("cuda", dtype=dtype):
            scores = model(batch)
        assert WAY != "ddp" or scores.dtype == dtype
        loss = loss_of(scores, target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
if __name__ == "__main__":
    main()
"""
OF_FSDP = {"all_gather", "reduce_scatter"}
COLLECTIVES = {"ddp": {"all_reduce"}, "fsdp1": OF_FSDP}
COLLECTIVES |= dict.fromkeys(("fsdp2", "hsdp", "tensor"), OF_FSDP | {"all_reduce"})


ON_GPUS: Any = {"num_ranks": 8, "rank": 3, "device": Device.CUDA}


def calls_of(step: TracedStep) -> list[tuple[TraceCall, str]]:
    """Return its calls without their times, each with its need: nothing of the step, a call, or a computation."""
    needs = [
        "nothing" if call.after == -1 else step.events[call.after].kind.name if call.after is not None else ""
        for call in step.calls
    ]
    # Under FakeTensorMode functional collectives wait at once, and so the streams after them wait for these calls, too.
    calls = [replace(call, local_s=0.0, after=None, after_calls=()) for call in step.calls]
    return list(zip(calls, needs, strict=True))


def products_of(step: TracedStep) -> set[tuple[str, str, int]]:
    """Return its products of matrices, each with its dtype and its floating-point operations."""
    operators = [operator for event in step.events for operator in event.operators if operator.flops]
    return {(operator.name, operator.dtype, operator.flops) for operator in operators}


@pytest.mark.parametrize("way", list(COLLECTIVES))
def test_programs_for_gpus_are_recorded(tmp_path: Path, way: str) -> None:
    """Without data as with data: collective, bytes, dtype, group, order and need of each call, and the arithmetic.

    The products of matrices are in the dtype that the program chose.
    """
    (program := tmp_path / "train.py").write_text(PROGRAM)  # beside which it saves weights, and loads them with --fake
    real, fake = (trace_of(program, way, is_fake=is_fake, **ON_GPUS) for is_fake in (False, True))
    assert real.device is fake.device is Device.CUDA
    assert real.groups == fake.groups
    assert {group.backend for group in fake.groups} <= {"nccl", "cpu:gloo,cuda:nccl", "undefined"}
    (with_data,), (step,) = real.steps, fake.steps
    assert calls_of(step) == calls_of(with_data)
    assert products_of(step) == products_of(with_data)
    assert step.flops == with_data.flops > 0
    assert step.compute_s == 0 < with_data.compute_s
    assert {call.collective for call in step.calls} == COLLECTIVES[way]
    products = {dtype for name, dtype, _ in products_of(step) if name in ("aten.mm", "aten.addmm")}
    assert products == {"float16" if way == "ddp" else "bfloat16"}
    if way == "fsdp2":  # the placeholder streams are those of CUDA, so that gathers may overlap the computations
        assert {call.on_side_stream for call in step.calls if call.collective == "all_gather"} == {True}


def test_all_steps_without_data_have_their_operators() -> None:
    """All of them are alike."""
    first, *others = trace_of(PROGRAM, "fsdp2", is_fake=True, num_steps=3, **ON_GPUS).steps
    assert others == [first] * 2
    assert {TraceEventKind.READ, TraceEventKind.COMPUTE} < {event.kind for event in first.events}


def test_programs_are_told_what_they_lack(tmp_path: Path) -> None:
    """In one line with the place: the device, or the numbers on which the shape of an operator's result depends."""
    (program := tmp_path / "train.py").write_text(PROGRAM)
    told = recorded(program, "fsdp2")
    assert told.startswith(f"{program}:")
    assert told.endswith("; a program that was written for GPUs needs --device cuda")
    (chooses := tmp_path / "chooses.py").write_text(f"{HEAD}weights[weights > 0]\n")
    told = recorded(chooses, is_fake=True)
    assert told.startswith(f"{chooses}:{LINE}: aten.")
    assert told.endswith("give --assume balanced if a router of experts causes it, or record without --fake")
    for body in "nn.parallel.DistributedDataParallel(nn.SyncBatchNorm(4))", "raise NotImplementedError('kernel')":
        told = recorded(f"{HEAD}{body}\n", device=Device.CUDA)
        assert told.endswith("; a CPU has no such kernel: record with --fake, where nothing is computed")


def test_an_error_that_the_program_has_caught_is_told(tmp_path: Path) -> None:
    """If it is the reason why there are no steps."""
    (program := tmp_path / "train.py").write_text(f"{HEAD}try: weights[weights > 0]\nexcept RuntimeError: pass\n")
    told = recorded(program, is_fake=True)
    assert told.startswith(
        f"{program}: it ended after 0 steps of a torch.optim.Optimizer; 2 warm up, and has caught an"
    )
    assert f" error: {program}:{LINE}: aten.nonzero.default needs real numbers, " in told


LOADED = """
class Noisy(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, index): return torch.full((2**18,), 0.5).sigmoid()[:4]
layer = nn.Linear(4, 4, device="cuda")
optimizer = torch.optim.AdamW(layer.parameters())
loader = torch.utils.data.DataLoader(Noisy(), 2, num_workers=int(sys.argv[1]))
names = "batch_size", "num_workers", "prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"
for batch in torch.utils.data.DataLoader(Noisy(), **{name: getattr(loader, name) for name in names}):  # as accelerate
    layer(batch.cuda()).sum().backward()
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
"""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_operators_are_those_of_a_gpu(num_workers: int) -> None:
    """An optimizer updates many parameters at once; what workers of a data loader compute is not the program's."""
    (step,) = trace_of(HEAD + LOADED, str(num_workers), is_fake=True, device=Device.CUDA).steps
    names = [operator.name for event in step.events for operator in event.operators for _ in range(operator.count)]
    assert names.count("aten.sigmoid") == (0 if num_workers else 2)
    assert {"aten._foreach_norm", "aten._foreach_lerp_"} < set(names)
    assert "aten.lerp_" not in names


AUTOCAST = """
F = nn.functional
half, scale = torch.ones(2, 4, 8, 8, device="cuda").half().requires_grad_(), torch.ones(8, device="cuda")
def dtypes(*tensors): return {tensor.dtype for tensor in tensors}
with torch.autocast("cuda", dtype=torch.float16):
    target = torch.zeros(64, dtype=torch.int64, device="cuda")
    wide = half.softmax(-1), half.sum(1), half.exp(), half**2, F.normalize(half), F.layer_norm(half, (8,), scale)
    assert dtypes(*wide, F.group_norm(half, 2), F.cross_entropy(half.view(-1, 8), target)) == {torch.float32}
    sum(tensor.sum() for tensor in wide).backward()
    assert dtypes(half.mean(), F.gelu(half), half @ half, F.pad(half, (1, 1, 1, 1), "reflect")) == {torch.float16}
    assert half.double().exp().dtype == torch.float64 and torch.arange(3).sum().dtype == torch.int64
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert dtypes(half.bfloat16().log_softmax(-1), half.bfloat16().softmax(-1)) == {torch.float32}
assert dtypes(half.grad, half.softmax(-1), half.exp()) == {torch.float16}
train()
"""


@pytest.mark.parametrize("is_fake", [False, True])
def test_autocast_computes_in_the_dtypes_of_a_gpu(is_fake: bool) -> None:
    """A GPU's autocast has softmax, norms and sums in float32, which a CPU's leaves in half precision."""
    trace_of(HEAD + AUTOCAST, is_fake=is_fake, device=Device.CUDA)
