"""DeepSpeed: ZeRO of the stage that is given, in bfloat16, with a scheduler, as its tutorials have it."""

import sys

import deepspeed
import torch
from torch import nn

deepspeed.init_distributed()
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
engine, optimizer, _, scheduler = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 64,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": int(sys.argv[1]), "overlap_comm": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
    },
)
for step in range(16):
    x = torch.randn(64, 1024, device=engine.device, dtype=torch.bfloat16)
    loss = engine(x).square().mean()
    engine.backward(loss)
    engine.step()
    if step % 4 == 0:
        print(step, loss.item(), engine.get_lr())
