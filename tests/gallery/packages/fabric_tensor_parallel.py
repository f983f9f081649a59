"""Lightning Fabric's ModelParallelStrategy: tensor parallelism, then FSDP2, as its example has it."""

import lightning
import torch
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

    def reset_parameters(self):
        nn.init.trunc_normal_(self.up.weight, std=0.02)
        nn.init.trunc_normal_(self.down.weight, std=0.02)


def parallelize(model, mesh):
    if mesh["tensor_parallel"].size() > 1:
        parallelize_module(model, mesh["tensor_parallel"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if mesh["data_parallel"].size() > 1:
        fully_shard(model, mesh=mesh["data_parallel"])
    return model


fabric = lightning.Fabric(
    accelerator="cuda",
    devices=8,
    precision="bf16-true",
    strategy=ModelParallelStrategy(parallelize_fn=parallelize, data_parallel_size=4, tensor_parallel_size=2),
)
fabric.launch()
with fabric.init_module(empty_init=True):
    model = Model()
model = fabric.setup(model)
model.reset_parameters()
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True))
for step in range(8):
    x = torch.randn(64, 256, device=fabric.device, dtype=torch.bfloat16)
    loss = model(x).square().mean()
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    fabric.print(step, loss.item())
