"""DDP with gradient accumulation, GradScaler, and an evaluation before the first step, as nanoGPT does it."""

import os
from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, LAYERS, VOCABULARY, BATCH, LENGTH, ACCUMULATED, EVALUATED = 256, 8, 2, 1024, 2, 128, 4, 20


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.projection = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        )

    def forward(self, x):
        heads = [
            each.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for each in self.attention(self.first(x)).split(WIDTH, 2)
        ]
        y = nn.functional.scaled_dot_product_attention(*heads, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).contiguous().flatten(2))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).view(-1, VOCABULARY), targets.view(-1), ignore_index=-1)


init_process_group(backend="nccl")
device = f"cuda:{int(os.environ['LOCAL_RANK'])}"
torch.cuda.set_device(device)
torch.backends.cuda.matmul.allow_tf32 = True
device_type = "cuda" if "cuda" in device else "cpu"
autocast = nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type=device_type, dtype=torch.bfloat16)
scaler = torch.amp.GradScaler("cuda", enabled=False)


def batch():
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return (each.pin_memory().to(device, non_blocking=True) for each in (x, y))


@torch.no_grad()
def estimated_loss():
    model.eval()
    losses = torch.zeros(EVALUATED)
    for index in range(EVALUATED):
        with autocast:
            losses[index] = model(*batch()).item()
    model.train()
    return losses.mean()


model = GPT().to(device)
decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], fused=True
)
model = DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])])
for step in range(8):
    if step % 100 == 0:
        print(f"step {step}: {estimated_loss():.4f}")
    for micro_step in range(ACCUMULATED):
        model.require_backward_grad_sync = micro_step == ACCUMULATED - 1
        with autocast:
            loss = model(*batch()) / ACCUMULATED
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
destroy_process_group()
