"""Llama of 1.34 billion parameters as nanotron trains it: tensor and sequence parallel, with ZeRO 0 or 1.

Follows nanotron's code of December 2024 in what it computes, sends and keeps in memory.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from parallel import Scatter, VocabularyLoss, finished, gather, groups, kernel, scatter, within
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

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
rotate_ = kernel("rotate_(Tensor(a!) x) -> ()", lambda _: None)


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


class RotaryOfKeys(torch.autograd.Function):
    """The same in place, for the keys of (batch, positions, keys and values, heads, width)."""

    @staticmethod
    def forward(ctx, keys_and_values):
        ctx.mark_dirty(keys_and_values)
        rotate_(keys_and_values[:, :, 0])
        return keys_and_values

    @staticmethod
    def backward(_, gradient):
        rotate_(gradient[:, :, 0])
        return gradient


class Columns(torch.autograd.Function):
    """A product with columns of a weight, whose input is gathered again in the backward pass."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.linear(finished(gather(x, tensor_group, kept("forward", x))), weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        whole = gather(x, tensor_group, kept("forward", x))
        of_input = gradient.matmul(weight)
        gradient, part = gradient.contiguous().flatten(0, 1), scatter(of_input, tensor_group)
        of_weight = gradient.t().matmul(finished(whole).flatten(0, 1))
        return finished(part), of_weight


class Rows(torch.autograd.Function):
    """A product with rows of a weight, whose result is summed over the ranks and scattered."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return finished(scatter(F.linear(x, weight), tensor_group))

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        gradient = finished(gather(gradient, tensor_group, kept("backward", gradient)))
        of_weight = gradient.flatten(0, 1).t().matmul(x.contiguous().flatten(0, 1))
        return gradient.matmul(weight), of_weight


_kept = {}


def kept(name: str, part: Tensor) -> Tensor:
    """Return the memory for a gathered tensor, which all layers share."""
    shape = part.shape[0] * PARTS, *part.shape[1:]
    if PARTS > 1 and (name not in _kept or _kept[name].shape != shape):
        _kept[name] = part.new_empty(shape)
    return _kept.get(name)


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % 8)
tensor_group, data_group = groups(PARTS)


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
        self.qkv = nn.Parameter(torch.empty(3 * WIDTH // PARTS, WIDTH))
        self.out = nn.Parameter(torch.empty(WIDTH, WIDTH // PARTS))
        self.gate_up = nn.Parameter(torch.empty(2 * HIDDEN // PARTS, WIDTH))
        self.down = nn.Parameter(torch.empty(WIDTH, HIDDEN // PARTS))

    def forward(self, x: Tensor) -> Tensor:
        """x: (positions, batch, WIDTH), with PARTS > 1 of this rank's part of the positions."""
        mixed = Columns.apply(self.norm_1(x), self.qkv).unflatten(-1, (3, HEADS // PARTS, -1))
        query, key, value = mixed.permute(2, 1, 0, 3, 4).contiguous()
        both = RotaryOfKeys.apply(torch.stack([key, value]).permute(1, 2, 0, 3, 4).contiguous())
        heads_first = (part.transpose(1, 2) for part in (Rotary.apply(query), *both.unbind(2)))
        attended = F.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2).flatten(2)
        x = x + Rows.apply(attended.transpose(0, 1), self.out)
        gate, up = Columns.apply(self.norm_2(x), self.gate_up).chunk(2, -1)
        return x + Rows.apply(F.silu(gate) * up, self.down)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY // PARTS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids.t())
        if PARTS > 1:
            x = within(Scatter, tensor_group)(x * (ids.t() < VOCABULARY // PARTS).unsqueeze(-1))
        for block in self.blocks:
            x = block(x)
        logits = Columns.apply(self.norm(x), self.tokens.weight).float()
        return VocabularyLoss.apply(logits, ids.t(), tensor_group).mean()


num_replicas = data_group.size()
num_shards = num_replicas if options.zero else 1
with torch.device("cuda"):
    model = Model().bfloat16()
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    gradients = torch.zeros(sum(sizes))  # are added up in float32
    shards = [-(-size // num_shards) for size in sizes]
    masters = [master.requires_grad_() for master in torch.zeros(sum(shards)).split(shards)]
optimizer = torch.optim.AdamW(masters, fused=True)
accumulated = dict(zip(parameters, gradients.split(sizes), strict=True))
pending = []


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    accumulated[parameter].view_as(parameter).add_(gradient.view_as(parameter))


def send(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Add up the gradients of a bucket and reduce them in float32."""
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        accumulate(parameter, gradient)
    whole = [accumulated[parameter] for parameter in bucket.parameters()]
    pending.append(dist.all_reduce_coalesced(whole, group=data_group, async_op=True))
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


if num_replicas > 1:
    model = DistributedDataParallel(model, process_group=data_group, broadcast_buffers=False, bucket_cap_mb=25)
    model.register_comm_hook(None, send)
while True:
    for number in range(options.accumulation):
        is_last = number == options.accumulation - 1
        if num_replicas > 1:
            model.require_backward_grad_sync = is_last
        ids = torch.randint(0, VOCABULARY, (options.micro, SEQUENCE), device="cuda")
        (model(ids) / options.accumulation).backward()
        for parameter in parameters:
            if not is_last or num_replicas == 1:
                accumulate(parameter, parameter.grad)
            parameter.grad = None
    while pending:
        pending.pop().wait()
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in accumulated.values()]))
    dist.all_reduce(total, group=tensor_group)
    for part in accumulated.values():
        part.mul_(1.0)
    for master, gradient in zip(masters, accumulated.values(), strict=True):
        master.grad = gradient[: master.numel()]
    optimizer.step()
    own = [
        parameter.detach().flatten()[: master.numel()] for parameter, master in zip(parameters, masters, strict=True)
    ]
    for part, master in zip(own, masters, strict=True):
        part.copy_(master.detach())
    if num_shards > 1:
        flat = torch.cat(own)
        whole = flat.new_empty(flat.numel() * num_shards)
        dist.all_gather_into_tensor(whole, flat, group=data_group)
        for parameter, part in zip(parameters, whole.split([n * num_shards for n in shards]), strict=True):
            parameter.detach().flatten().copy_(part[: parameter.numel()])
        del flat, whole, part
    gradients.zero_()
