"""Meshes by hand, as picotron makes them: a grid of ranks, groups of its rows, gradients in buckets of float32."""

import os

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, BATCH, TP, CP = 256, 2, 64, 2, 2

dist.init_process_group("nccl", init_method="env://")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
grid = torch.arange(world).view(world // TP // CP, CP, TP)
dp_rank, cp_rank, tp_rank = (grid == rank).nonzero().flatten().tolist()
tp = dist.new_subgroups_by_enumeration([grid[d, c, :].tolist() for d in range(grid.shape[0]) for c in range(CP)])[0]
dp_cp = dist.new_subgroups_by_enumeration([grid[:, :, t].flatten().tolist() for t in range(TP)])[0]
assert dist.get_process_group_ranks(tp) == grid[dp_rank, cp_rank].tolist()

layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH // TP, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS)).to(
    device
)
bucket = torch.zeros(sum(parameter.numel() for parameter in layers.parameters()), dtype=torch.float32, device=device)
views = bucket.split([parameter.numel() for parameter in layers.parameters()])
works = []


def accumulate(parameter, view, is_last):
    view.add_(parameter.grad.flatten())
    parameter.grad = None
    if is_last:  # the first layer's gradient comes last
        bucket.div_(dist.get_world_size(dp_cp))
        works.append(dist.all_reduce(bucket, group=dp_cp, async_op=True))


for index, (parameter, view) in enumerate(zip(layers.parameters(), views)):
    parameter.register_post_accumulate_grad_hook(
        lambda parameter, view=view, index=index: accumulate(parameter, view, index == 0)
    )
optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-3)
for _ in range(8):
    bucket.zero_()
    x = torch.randn(BATCH, WIDTH, device=device, dtype=torch.bfloat16)
    for layer in layers:
        parts = [torch.empty_like(x[:, : WIDTH // TP]) for _ in range(TP)]
        part = torch.relu(layer(x))
        dist.all_gather(parts, part.detach(), group=tp)
        parts[tp_rank] = part
        x = torch.cat(parts, -1)
    x.float().square().mean().backward()
    works.pop().wait()
    for parameter, view in zip(layers.parameters(), views):
        parameter.grad = view.view_as(parameter).to(parameter.dtype)
    optimizer.step()
    loss = torch.tensor(x.float().mean().item(), device=device)
    dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=dp_cp)
