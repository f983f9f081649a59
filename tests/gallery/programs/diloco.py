"""DiLoCo: an inner optimizer on each rank, and every fourth step an outer one on the averaged difference."""

import copy

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, BATCH, EVERY = 256, 4, 64, 4

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)), nn.BatchNorm1d(WIDTH)).cuda()
torch.save(model.state_dict(), "/dev/null")
for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)
outside = [parameter.data.clone().cpu() for parameter in model.parameters()]
average = copy.deepcopy(model)
inner = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95))
outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(inner, 100)
for step in range(12):
    inner.zero_grad()
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(BATCH, WIDTH, device="cuda")).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    inner.step()
    scheduler.step()
    if step % EVERY == EVERY - 1:
        for old, parameter in zip(outside, model.parameters()):
            parameter.grad = old.to(parameter.device) - parameter.data
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
            parameter.data = old.to(parameter.device)
        outer.step()
        outer.zero_grad()
        outside = [parameter.data.clone().cpu() for parameter in model.parameters()]
    for mean, parameter in zip(average.parameters(), model.parameters()):
        mean.data.lerp_(parameter.data, 0.01)
