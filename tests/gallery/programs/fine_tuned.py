"""FSDP2 as trainers do it: loaded weights, accumulation without synchronisation, a norm that is logged."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

WIDTH, LAYERS, BATCH, LENGTH, ACCUMULATED = 256, 2, 2, 128, 2

dist.init_process_group(backend="cuda:nccl,cpu:gloo")
device = torch.device(torch.accelerator.current_accelerator().type, int(os.environ["LOCAL_RANK"]))
torch.accelerator.set_device_index(device.index)


def make(where):
    with torch.device(where):
        return nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True),
            LAYERS,
            enable_nested_tensor=False,
        )


with tempfile.TemporaryDirectory() as folder:
    torch.save({name: value.clone() for name, value in make("cpu").state_dict().items()}, f"{folder}/weights.pt")
    weights = (
        torch.load(f"{folder}/weights.pt", map_location=device, weights_only=True)
        if os.path.exists(f"{folder}/weights.pt")
        else None
    )
model = make("cpu").to(device)
if weights:
    model.load_state_dict(weights, assign=True)
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
logged = 0.0
for step in range(8):
    for micro_step in range(ACCUMULATED):
        model.set_requires_gradient_sync(micro_step == ACCUMULATED - 1)
        x = torch.randn(BATCH, LENGTH, WIDTH, device=device)
        with (
            torch.autocast("cuda", torch.bfloat16),
            sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]),
        ):
            loss = model(x).float().square().mean() / ACCUMULATED
        loss.backward()
        logged += loss.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if isinstance(norm, torch.distributed.tensor.DTensor):
        norm = norm.full_tensor()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    every = [torch.zeros_like(logged) for _ in range(dist.get_world_size())]
    dist.all_gather(every, logged)
    if dist.get_rank() == 0:
        print(
            {
                "loss": round(torch.stack(every).mean().item(), 4),
                "norm": round(norm.item(), 4),
                "rate": scheduler.get_last_lr()[0],
            }
        )
    logged -= logged
