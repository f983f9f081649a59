"""FSDP2 over tensor parallelism, as torchtitan does it: initialised on meta, attention on DTensors, a checked norm."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

WIDTH, HEADS, HIDDEN, LAYERS, VOCABULARY, BATCH, LENGTH, TP = 256, 8, 768, 2, 1024, 2, 128, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.gate = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.norm(x)
        heads = [
            each(seen).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        ]
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        seen = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(seen)) * self.up(seen))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", timeout=timedelta(minutes=5))
mesh = init_device_mesh("cuda", (dist.get_world_size() // TP, TP), mesh_dim_names=("dp", "tp"))
with torch.device("meta"):
    model = Model()
rows, columns = RowwiseParallel(output_layouts=Shard(1)), ColwiseParallel(input_layouts=Shard(1))
heads = dict.fromkeys(("query", "key", "value"), ColwiseParallel(input_layouts=Shard(1), use_local_output=False))
plan = {"norm": SequenceParallel(), **heads, "output": rows, "up": columns, "gate": columns, "down": rows}
ends = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}
parallelize_module(model, mesh["tp"], ends)
for block in model.blocks:
    parallelize_module(block, mesh["tp"], plan)
    fully_shard(block, mesh=mesh["dp"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
fully_shard(model, mesh=mesh["dp"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
model.to_empty(device=device)
for parameter in model.parameters():
    nn.init.trunc_normal_(parameter, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for step in range(8):
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), device=device)
    scores = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    assert all(each.device == device and each.is_cuda for each in (tokens, scores, loss))
    if not torch.isfinite(norm) or norm > 1e6:
        raise RuntimeError(f"step {step}: norm {norm.item()}")
    optimizer.step()
    optimizer.zero_grad()
    if step == 0:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=100), mesh.get_group("dp"))
    print(step, loss.item(), float(norm), f"{torch.cuda.max_memory_reserved() / 2**30:.2f} GiB")
dist.destroy_process_group()
