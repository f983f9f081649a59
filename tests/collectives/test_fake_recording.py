"""`ringsim trace --fake`: programs on tensors without data make the calls that they make with data."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ringsim.traces import Call, TracedStep, TraceEventKind
from tests.collectives.test_recording import LIMIT_S, recorded, trace_of
from tests.forked import ROOT

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

WAY = sys.argv[1]
dist.init_process_group("nccl" if WAY == "ddp" else "gloo")
size = dist.get_world_size()
everywhere = [None] * size
dist.all_gather_object(everywhere, {"of": dist.get_rank()})
assert everywhere == [{"of": dist.get_rank()}] * size
model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(3)])
model = model.to(torch.float64).to(torch.float32)
if WAY == "ddp":
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=5e-3)
elif WAY in ("fsdp", "hsdp"):
    if WAY == "hsdp":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = None  # of all ranks
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
elif WAY == "two dimensions":
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    for layer in model:
        parallelize_module(layer, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters())
drawn = DataLoader(TensorDataset(torch.randn(100, 16)), batch_size=4)
for (batch,) in drawn:
    loss = model(batch.to("cpu:0")).float().pow(2).mean()
    loss.backward()
    if WAY == "chooses":
        batch = batch[batch > 0]
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if not mean.isnan():
        print(mean.item(), mean.numpy().tolist(), f"{mean:.1f}", int(batch.argmax()))
"""


def calls_of(step: TracedStep) -> list[tuple[Call, str]]:
    """Its calls without their times, each with what it needs: nothing of the step, a call, or a computation."""
    needs = [
        "nothing" if call.after == -1 else step.events[call.after].kind.name if call.after is not None else ""
        for call in step.calls
    ]
    # Under FakeTensorMode functional collectives wait at once, and so the streams after them wait for these calls, too.
    calls = [replace(call, local_s=0.0, after=None, after_calls=()) for call in step.calls]
    return list(zip(calls, needs, strict=True))


def computations_of(step: TracedStep) -> set[tuple[str, int]]:
    """Its products of matrices, each with its floating-point operations."""
    operators = [operator for event in step.events for operator in event.operators if operator.flops]
    return {(operator.name, operator.flops) for operator in operators}


@pytest.mark.parametrize("way", ["ddp", "fsdp", "hsdp", "two dimensions"])
def test_calls_are_those_of_a_program_with_data(program: Path, way: str) -> None:
    """Collective, bytes, dtype, group, order and need; and nothing takes time."""
    fake = trace_of(program, way, is_fake=True)
    real = trace_of(program, way)
    assert fake.groups == real.groups
    assert len(fake.steps[0].calls) > 1
    assert calls_of(fake.steps[0]) == calls_of(real.steps[0])
    assert computations_of(fake.steps[0]) == computations_of(real.steps[0])
    assert fake.steps[0].flops == real.steps[0].flops > 0
    assert fake.steps[0].compute_s == 0 < real.steps[0].compute_s


def test_all_steps_have_their_operators(program: Path) -> None:
    """All of them are alike."""
    trace = trace_of(program, "fsdp", is_fake=True, num_steps=3)
    first, *others = trace.steps
    assert others == [first] * 2
    assert {TraceEventKind.READ, TraceEventKind.COMPUTE} < {event.kind for event in first.events}


def test_a_program_that_needs_numbers_is_told_where(program: Path) -> None:
    """Of an operator whose result's shape depends on them."""
    line = 1 + PROGRAM[: PROGRAM.index("batch = batch[batch > 0]")].count("\n")
    told = recorded(program, "chooses", is_fake=True)
    assert isinstance(told, str)
    assert told.startswith(f"{program}:{line}: aten.")
    assert told.endswith("with --fake there are none: leave it out there, or record without --fake")


def test_values_are_warned_of_once(program: Path) -> None:
    """With the line that reads first, as an `if` does; the program goes on with 1.0."""
    output = program.with_suffix(".json")
    command = ["trace", "--fake", "--ranks", "4", "-o", str(output), str(program), "ddp"]
    done = subprocess.run(
        [sys.executable, "-m", "ringsim", *command], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    line = 1 + PROGRAM[: PROGRAM.index("if not mean.isnan()")].count("\n")
    assert done.stderr.count("the program reads values") == 1
    assert f"{program}:{line}: UserWarning: the program reads values" in done.stderr
    assert "1.0 1.0 1.0 1\n" in done.stdout
    assert " TFLOP, and " in done.stdout
    assert "\nmemory of tensors at the peak " in done.stdout


CHECKPOINTS = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint

dist.init_process_group("gloo")
weights = torch.ones(8, requires_grad=True)
optimizer = torch.optim.SGD([weights])
while True:
    weights.grad = torch.ones(8)
    optimizer.step()
    torch.save({"weights": weights}, sys.argv[1] + "/weights.pt")
    checkpoint.save({"weights": weights}, checkpoint_id=sys.argv[1])
"""


def test_checkpoints_stay_as_they_are(tmp_path: Path) -> None:
    """With --fake, torch.save and torch.distributed.checkpoint write nothing, since tensors have no data."""
    program, saved = tmp_path / "saves.py", tmp_path / "saved"
    program.write_text(CHECKPOINTS)
    saved.mkdir()
    files = [saved / name for name in ("weights.pt", ".metadata", "__0_0.distcp")]
    for file in files:
        file.write_text("of a real run")
    trace_of(program, str(saved), is_fake=True)
    assert {file: file.read_text() for file in saved.iterdir()} == dict.fromkeys(files, "of a real run")


def test_llama_computes_half_of_its_products_again() -> None:
    """Of the seven of each block the second, fourth and sixth; all others are computed once forward, twice backward.

    Of attention the positions count that the causal mask leaves: 4 W for each pair of them, layer and sequence forward,
    2.5 times as many backward, and it is not computed again.
    """
    layers, batch, length, width, hidden, vocabulary = 2, 2, 1024, 4096, 14336, 128256
    trace = trace_of(ROOT / "examples" / "llama.py", "--layers", str(layers), "--length", str(length), is_fake=True)
    (step,) = trace.steps
    keys = width * width // 4
    of_block = 2 * width**2 + 2 * keys + 3 * width * hidden
    again = keys + width**2 + width * hidden
    products = batch * length * (6 * (layers * of_block + width * vocabulary) + 2 * layers * again)
    attention = layers * batch * 4 * width * (length * (length + 1) // 2) * 7 // 2
    assert step.flops == products + attention
    gathered = [call.size_bytes for call in step.calls if call.collective == "all_gather"]
    # The last block and what is at the root stay gathered; the other blocks are gathered twice, in bfloat16.
    twice = 2 * ((2 * layers - 1) * of_block + 2 * width * vocabulary)
    assert sum(gathered) == pytest.approx(twice, rel=0.01)


@pytest.mark.slow
def test_llama_is_recorded_on_a_laptop() -> None:
    """As one of 128 ranks: 8.03 billion parameters, each of which is reduced once, in float32."""
    trace = trace_of(ROOT / "examples" / "llama.py", num_ranks=128, is_fake=True)
    scattered = [call for call in trace.steps[0].calls if call.collective == "reduce_scatter"]
    assert sum(call.size_bytes for call in scattered) == pytest.approx(4 * 8.03e9, rel=0.001)
