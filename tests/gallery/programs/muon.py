"""Optimizers that shard their state by hand and overlap their calls, as nanochat's do; the garbage collector frozen."""

import gc

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, VOCABULARY, BATCH = 256, 8, 1024, 512

dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
rank, world = dist.get_rank(), dist.get_world_size()


class Muon(torch.optim.Optimizer):
    """Each rank orthogonalises the matrices that it owns."""

    def __init__(self, matrices, lr=0.02):
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self):
        (group,) = self.param_groups
        matrices = group["params"]
        sums, gathered = [], []
        for first in range(0, len(matrices), world):
            owned = [matrix.grad for matrix in matrices[first : first + world]]
            own = torch.empty_like(owned[0])
            work = dist.reduce_scatter(
                own, [*owned, *[torch.zeros_like(own)] * (world - len(owned))], dist.ReduceOp.AVG, async_op=True
            )
            sums.append((first, own, work.get_future()))
        for first, own, future in sums:
            future.wait()
            state = self.state[matrices[min(first + rank, len(matrices) - 1)]]
            buffer = state.setdefault("momentum", torch.zeros_like(own))
            update = orthogonal(buffer.lerp_(own, 0.05).bfloat16()).float()
            everyone = [torch.empty_like(update) for _ in range(world)]
            gathered.append((first, everyone, dist.all_gather(everyone, update, async_op=True).get_future()))
        for first, everyone, future in gathered:
            future.wait()
            for matrix, update in zip(matrices[first : first + world], everyone):
                matrix.add_(update, alpha=-group["lr"])


def orthogonal(x):
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


model = nn.Sequential(
    nn.Embedding(VOCABULARY, WIDTH),
    *(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)),
    nn.Linear(WIDTH, VOCABULARY, bias=False),
).cuda()
matrices = [model[1 + layer].weight for layer in range(LAYERS)]
others = [model[0].weight, model[-1].weight]
optimizers = [torch.optim.AdamW(others, fused=True), Muon(matrices)]
for step in range(8):
    tokens = torch.randint(VOCABULARY, (BATCH,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(tokens), tokens)
    loss.backward()
    for parameter in others:
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    if step == 0:
        gc.collect()
        gc.freeze()
        gc.disable()
