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
accumulated, waiting, is_last = buffer.split(sizes), [], False
BUCKET_BYTES = 25 * 2**20  # of the parameters' dtype, as DistributedDataParallel has buckets


def accumulate(index: int, bucket: slice | None) -> None:
    """Add up a gradient; in the last micro-step send the bucket that it completes."""
    accumulated[index].view_as(parameters[index]).add_(parameters[index].grad)
    parameters[index].grad = None
    if is_last and bucket and data_group.size() > 1:
        waiting.append(dist.all_reduce(buffer[bucket].div_(data_group.size()), group=data_group, async_op=True))


start = end = len(buffer)
for index in reversed(range(len(parameters))):
    start -= sizes[index]
    is_full = (end - start) * parameters[0].itemsize >= BUCKET_BYTES or index == 0
    bucket = slice(start, end) if is_full else None
    end = start if is_full else end
    parameters[index].register_post_accumulate_grad_hook(
        lambda _, index=index, bucket=bucket: accumulate(index, bucket)
    )
while True:
    buffer.zero_()
    for number in range(options.accumulation):
        is_last = number == options.accumulation - 1
        ids = torch.zeros((options.micro, SEQUENCE), dtype=torch.long, device="cuda")
        (model(ids) / options.accumulation).backward()
    while waiting:
        waiting.pop().wait()
    gradients = [part[: shard.numel()] for part, shard in zip(accumulated, shards, strict=True)]
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    dist.all_reduce(total)
    torch._foreach_mul_(gradients, 1.0)
    for shard, gradient in zip(shards, gradients, strict=True):
        shard.grad = gradient
    optimizer.step()
    updated = [shard.detach().bfloat16() for shard in shards]
    if num_shards > 1:
        wholes = [new.new_empty(new.numel() * num_shards) for new in updated]
        for whole, new in zip(wholes, updated, strict=True):
            waiting.append(dist.all_gather_into_tensor(whole, new, group=data_group, async_op=True))
        while waiting:
            waiting.pop().wait()
        updated = [whole[:size] for whole, size in zip(wholes, sizes, strict=True)]
    torch._foreach_copy_([p.detach().flatten() for p in parameters], updated)
