"""Tensor parallelism by hand, with activation checkpoints and a sharded optimizer, as Megatron-core's loop does it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, HIDDEN, LAYERS, VOCABULARY, BATCH, LENGTH, TP = 256, 1024, 2, 1024, 2, 128, 2

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
for first in range(0, world, TP):
    group = dist.new_group(list(range(first, first + TP)), pg_options=dist.ProcessGroupNCCL.Options())
    tp = group if first <= rank < first + TP else globals().get("tp")
for first in range(TP):
    group = dist.new_group(list(range(first, world, TP)))
    dp = group if rank % TP == first else globals().get("dp")


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=tp)
        return gradient


class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x, group=tp)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, device="cuda", dtype=torch.bfloat16)
        self.up = nn.Linear(WIDTH, HIDDEN // TP, bias=False, device=torch.cuda.current_device(), dtype=torch.bfloat16)
        self.down = nn.Linear(HIDDEN // TP, WIDTH, bias=False, device=torch.cuda.current_device(), dtype=torch.bfloat16)

    def forward(self, x):
        return x + Reduced.apply(self.down(nn.functional.gelu(self.up(Copied.apply(self.norm(x))))))


def vocabulary_parallel_loss(scores, targets):
    highest = scores.max(-1, keepdim=True)[0]
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=tp)
    scores = scores - highest
    first = dist.get_rank(tp) * VOCABULARY // TP
    outside = (targets < first) | (targets >= first + VOCABULARY // TP)
    own = scores.gather(-1, (targets - first).masked_fill(outside, 0).unsqueeze(-1)).squeeze(-1)
    own = Reduced.apply(own.masked_fill(outside, 0.0))
    return (torch.log(Reduced.apply(scores.exp().sum(-1))) - own).mean()


states = {"model-parallel": torch.cuda.get_rng_state(device="cuda")}
torch.cuda.manual_seed(1234 + rank % TP)
torch.cuda.set_rng_state(states["model-parallel"], device=torch.cuda.current_device())
torch.cuda.default_generators[torch.cuda.current_device()].get_state()
blocks = nn.ModuleList(Block() for _ in range(LAYERS))
head = nn.Linear(WIDTH, VOCABULARY // TP, bias=False, device="cuda", dtype=torch.bfloat16)
parameters = [*blocks.parameters(), *head.parameters()]
size = sum(parameter.numel() for parameter in parameters)
padded = -(-size // dist.get_world_size(dp)) * dist.get_world_size(dp)
flat_gradient = torch.zeros(padded, dtype=torch.float32, device="cuda")
flat = torch.zeros(padded, dtype=torch.bfloat16, device="cuda")
length = padded // dist.get_world_size(dp)
own = slice(dist.get_rank(dp) * length, (dist.get_rank(dp) + 1) * length)
main = flat[own].float().clone().requires_grad_()
optimizer = torch.optim.Adam([main])
for _ in range(8):
    x = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    targets = torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")
    for block in blocks:
        x = checkpoint(block, x.requires_grad_(), use_reentrant=True)
    loss = vocabulary_parallel_loss(head(Copied.apply(x)).float(), targets)
    loss.backward()
    offset = 0
    for parameter in parameters:
        flat_gradient[offset : offset + parameter.numel()].copy_(parameter.grad.flatten())
        offset += parameter.numel()
        parameter.grad = None
    dist.reduce_scatter_tensor(flat_gradient[own], flat_gradient, group=dp)
    norm = flat_gradient[own].norm() ** 2
    dist.all_reduce(norm)
    if norm.sqrt() > 1.0:
        flat_gradient[own].mul_(1.0 / norm.sqrt())
    main.grad = flat_gradient[own]
    optimizer.step()
    flat[own].copy_(main.detach())
    dist.all_gather_into_tensor(flat, flat[own], group=dp)
    averaged = loss.detach().clone()
    dist.all_reduce(averaged, group=dp, op=dist.ReduceOp.AVG)
