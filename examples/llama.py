"""Llama 3.1 8B under FSDP2, to record without a GPU: `ringsim trace --ranks 128 --fake examples/llama.py`.

The program is one that torchrun starts, with weights and tokens drawn at random. Its sizes are those of Llama 3.1 8B
(Grattafiori et al. 2024, table 3); layers are sharded one by one, parameters are gathered in bfloat16 and gradients
reduced in float32, and the backward pass computes again whatever is not saved: attention, reductions and every second
matrix product are.
"""

import argparse
import os
import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

aten = torch.ops.aten
ATTENTION = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
)
ROTARY_BASE = 500_000.0


class Attention(nn.Module):
    """Causal attention with rotary positions, in which several heads of queries share one of keys and values."""

    def __init__(self, width: int, heads: int, shared_heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, shared_heads * self.head_width, bias=False)
        self.values = nn.Linear(width, shared_heads * self.head_width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """x: (batch, length, width); turns: complex, (length, half the width of a head)."""
        query, key, value = (
            part(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # (batch, heads, length, width of a head)
            for part in (self.queries, self.keys, self.values)
        )
        query, key = rotated(query, turns), rotated(key, turns)
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        looked_up = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(looked_up.transpose(1, 2).flatten(2))
        return out


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Turn each pair of numbers of x, (..., length, width of a head), as its position says, in float32."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)


class Block(nn.Module):
    """Attention, then a gated network for each position; each adds to what comes in."""

    def __init__(self, width: int, heads: int, shared_heads: int, hidden: int) -> None:
        super().__init__()
        self.before_attention, self.attention = nn.RMSNorm(width), Attention(width, heads, shared_heads)
        self.before_mlp = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """x: (batch, length, width)."""
        x = x + self.attention(self.before_attention(x), turns)
        inner = self.before_mlp(x)
        out: Tensor = x + self.down(functional.silu(self.gate(inner)) * self.up(inner))
        return out


class Llama(nn.Module):
    """The decoder of Llama 3; with `options.save_all` no activation is computed twice."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        sizes = options.width, options.heads, options.shared_heads, options.hidden
        self.blocks = nn.ModuleList(Block(*sizes) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.width)
        self.out = nn.Linear(options.width, options.vocabulary, bias=False)
        self.head_width, self.saves_all = options.width // options.heads, options.save_all

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (batch, length); returns the scores of the next one, (batch, length, vocabulary)."""
        x = self.tokens(tokens)
        steps = torch.arange(0, self.head_width, 2, device=tokens.device) / self.head_width
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), ROTARY_BASE**-steps)
        turns = torch.polar(torch.ones_like(angles), angles)
        for block in self.blocks:
            if self.saves_all:
                x = block(x, turns)
            else:
                x = checkpoint(block, x, turns, use_reentrant=False, context_fn=saving_every_second_product)
        scores: Tensor = self.out(self.norm(x))
        return scores


def saving_every_second_product() -> Any:
    """Return what checkpoint enters in the forward pass, and when it computes again."""
    products = {"forward": 0, "again": 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator is aten.mm.default:
            when = "again" if context.is_recompute else "forward"
            products[when] += 1
            return CheckpointPolicy.MUST_SAVE if products[when] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if operator in ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def train(options: argparse.Namespace) -> None:
    """Train on every rank; rank 0 prints the number of parameters."""
    model = Llama(options)
    if dist.get_rank() == 0:
        print(f"{sum(parameter.numel() for parameter in model.parameters()) / 1e9:.3f} billion parameters")
    shard = partial(fully_shard, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    for block in model.blocks:
        shard(block, reshard_after_forward=block is not model.blocks[-1])  # the backward pass needs that one at once
    shard(model)  # the rest: embeddings, the last norm and scores
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, betas=(0.9, 0.95), foreach=True)
    for _ in range(options.steps):
        tokens = torch.randint(options.vocabulary, (options.batch_size, options.length + 1))
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()


def read_options(arguments: list[str]) -> argparse.Namespace:
    """Return the options; by default the model is Llama 3.1 8B."""
    parser = argparse.ArgumentParser(prog="llama.py", description="Train Llama 3.1 8B under FSDP2.")
    sizes = {"steps": 1000, "batch-size": 2, "length": 8192, "layers": 32, "heads": 32, "shared-heads": 8}
    sizes |= {"width": 4096, "hidden": 14336, "vocabulary": 128256}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"({default})")
    parser.add_argument("--save-all", action="store_true", help="save all activations instead of computing them again")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    if "RANK" not in os.environ:  # torchrun and ringsim trace set it
        print("llama.py: start it with ringsim trace --ranks 128 --fake examples/llama.py", file=sys.stderr)
        sys.exit(2)
    dist.init_process_group()
    train(read_options(sys.argv[1:]))
    dist.destroy_process_group()
