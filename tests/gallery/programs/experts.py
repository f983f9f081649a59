"""A mixture of experts: counts that are read from the router, tokens sent to their experts, grouped products."""

import torch
import torch.distributed as dist
from torch import nn

WIDTH, HIDDEN, EXPERTS, TOP, TOKENS = 256, 512, 16, 2, 1024

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())


class Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, received, sent):
        ctx.splits = sent, received
        out = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, gradient):
        received, sent = ctx.splits
        out = gradient.new_empty(sum(received), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), received, sent)
        return out, None, None


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS // world, WIDTH, HIDDEN) * 0.02)
        self.down = nn.Parameter(torch.randn(EXPERTS // world, HIDDEN, WIDTH) * 0.02)

    def forward(self, x):
        weights, experts = self.router(x).softmax(-1).topk(TOP, -1)
        counts = torch.bincount(experts.flatten(), minlength=EXPERTS)
        order = experts.flatten().argsort(stable=True)
        others = torch.empty_like(counts)
        dist.all_to_all_single(others, counts)
        sent, received = (each.view(world, -1).sum(1).tolist() for each in (counts, others))
        routed = Exchanged.apply(x[order // TOP], received, sent)
        ends = others.view(world, -1).sum(0).cumsum(0).to(torch.int32)
        hidden = torch.relu(nn.functional.grouped_mm(routed, self.up.to(x.dtype), offs=ends))
        back = Exchanged.apply(nn.functional.grouped_mm(hidden, self.down.to(x.dtype), offs=ends), sent, received)
        return x + torch.zeros_like(x).index_add(0, order // TOP, back * weights.flatten()[order].unsqueeze(1))


model = Experts().cuda().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(8):
    model(torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)).float().square().mean().backward()
    dist.all_reduce(model.router.weight.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    optimizer.zero_grad()
