"""MPT as llm-foundry trains it: FSDP1, a block a unit, all in bfloat16."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

SIZES = {  # width, heads, layers: the configurations in llm-foundry's scripts/train/yamls/pretrain
    "125m": (768, 12, 12),
    "350m": (1024, 16, 24),
    "760m": (1536, 12, 24),
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}
VOCABULARY = 50_368


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Model(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, sequence: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=SIZES)
parser.add_argument("--checkpoint", action="store_true")
for name in ("sequence", "micro", "accumulation"):
    parser.add_argument(f"--{name}", type=int)
options = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % 8)
with torch.device("cuda"):
    model = Model(*SIZES[options.model], options.sequence)
model = FullyShardedDataParallel(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
    device_id=torch.cuda.current_device(),
    use_orig_params=True,
)
if options.checkpoint:
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda module: isinstance(module, Block)
    )
optimizer = torch.optim.AdamW(model.parameters())
while True:
    for _ in range(options.accumulation):
        ids = torch.randint(0, VOCABULARY, (options.micro, options.sequence), device="cuda")
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        (loss / options.accumulation).backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
