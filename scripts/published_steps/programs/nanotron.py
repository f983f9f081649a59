"""Llama of 1.34 billion parameters as nanotron trains it: tensor and sequence parallel, with ZeRO 0 or 1."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from parallel import Gather, Scatter, VocabularyLoss, groups, kernel, within
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, HIDDEN, SEQUENCE, VOCABULARY = 2048, 32, 16, 8192, 4096, 131_072
parser = argparse.ArgumentParser()
for name in ("micro", "accumulation", "parts", "zero"):
    parser.add_argument(f"--{name}", type=int)
options = parser.parse_args()
PARTS = options.parts

norm = kernel("norm(Tensor x, Tensor weight) -> Tensor", lambda x, _: torch.empty_like(x))
norm_backward = kernel(
    "norm_backward(Tensor d, Tensor x, Tensor weight) -> (Tensor, Tensor)",
    lambda d, _, weight: (torch.empty_like(d), torch.empty_like(weight)),
)
rotate = kernel("rotate(Tensor x) -> Tensor", torch.empty_like)


class RmsNorm(torch.autograd.Function):
    """A kernel of flash-attn."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return norm(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        return norm_backward(gradient.contiguous(), *ctx.saved_tensors)


class Rotary(torch.autograd.Function):
    """A kernel of flash-attn."""

    @staticmethod
    def forward(_, x):
        return rotate(x)

    @staticmethod
    def backward(_, gradient):
        return rotate(gradient.contiguous())


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % 8)
tensor_group, data_group = groups(PARTS)


gathered, scattered = within(Gather, tensor_group), within(Scatter, tensor_group)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return RmsNorm.apply(x, self.weight)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = Norm(), Norm()
        self.qkv, self.out = (
            nn.Linear(WIDTH, 3 * WIDTH // PARTS, bias=False),
            nn.Linear(WIDTH // PARTS, WIDTH, bias=False),
        )
        self.gate_up = nn.Linear(WIDTH, 2 * HIDDEN // PARTS, bias=False)
        self.down = nn.Linear(HIDDEN // PARTS, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (positions, batch, WIDTH), with PARTS > 1 of this rank's part of the positions."""
        mixed = self.qkv(gathered(self.norm_1(x))).unflatten(-1, (3, HEADS // PARTS, -1)).permute(2, 1, 3, 0, 4)
        query, key, value = mixed.unbind(0)
        attended = F.scaled_dot_product_attention(Rotary.apply(query), Rotary.apply(key), value, is_causal=True)
        x = x + scattered(self.out(attended.permute(2, 0, 1, 3).flatten(2)))
        gate, up = self.gate_up(gathered(self.norm_2(x))).chunk(2, -1)
        return x + scattered(self.down(F.silu(gate) * up))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY // PARTS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids.t())
        if PARTS > 1:
            x = scattered(x * (ids.t() < VOCABULARY // PARTS).unsqueeze(-1))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(gathered(self.norm(x)), self.tokens.weight)
        return VocabularyLoss.apply(logits, ids.t(), tensor_group).mean()


num_shards = data_group.size() if options.zero else 1
with torch.device("cuda"):
    model = Model().bfloat16()
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    buffer = torch.zeros(sum(sizes))  # gradients are added up in float32
    shards = [torch.zeros(-(-size // num_shards), requires_grad=True) for size in sizes]
optimizer = torch.optim.AdamW(shards, fused=True)
for parameter, accumulated in zip(parameters, buffer.split(sizes), strict=True):

    def accumulate(parameter: Tensor, accumulated: Tensor = accumulated) -> None:
        accumulated.view_as(parameter).add_(parameter.grad)
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(accumulate)
while True:
    buffer.zero_()
    for _ in range(options.accumulation):
        ids = torch.zeros((options.micro, SEQUENCE), dtype=torch.long, device="cuda")
        (model(ids) / options.accumulation).backward()
    gradients = buffer.split(sizes)
    if data_group.size() > 1:
        buffer.div_(data_group.size())
        if options.zero:
            part = buffer.new_empty(-(-buffer.numel() // num_shards))
            dist.reduce_scatter_tensor(
                part, F.pad(buffer, (0, part.numel() * num_shards - buffer.numel())), group=data_group
            )
            gradients = [part[: shard.numel()] for shard in shards]
        else:
            dist.all_reduce(buffer, group=data_group)
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    dist.all_reduce(total)
    torch._foreach_mul_(gradients, 1.0)
    for shard, gradient in zip(shards, gradients, strict=True):
        shard.grad = gradient
    optimizer.step()
    updated = [shard.detach().bfloat16() for shard in shards]
    if num_shards > 1:
        whole = torch.empty(sum(map(torch.numel, updated)) * num_shards, dtype=torch.bfloat16, device="cuda")
        dist.all_gather_into_tensor(whole, torch.cat(updated), group=data_group)
        updated = [p.detach() for p in parameters]
    torch._foreach_copy_([p.detach().flatten() for p in parameters], [new.flatten() for new in updated])
