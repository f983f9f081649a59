"""GPT as Megatron-LM trains it with tensor and data parallelism in float16, with its fused kernels."""

import argparse
from math import sqrt

import torch
import torch.distributed as dist
import torch.nn.functional as F
from parallel import Copy, Reduce, VocabularyLoss, groups, kernel, within
from torch import Tensor, nn

VOCABULARY = 51_200
parser = argparse.ArgumentParser()
for name in ("width", "heads", "layers", "sequence", "micro", "accumulation", "parts"):
    parser.add_argument(f"--{name}", type=int)
options = parser.parse_args()
WIDTH, PARTS = options.width, options.parts

softmax = kernel("softmax(Tensor x) -> Tensor", torch.empty_like)
softmax_backward = kernel("softmax_backward(Tensor d, Tensor p) -> Tensor", lambda d, _: torch.empty_like(d))
add = kernel(
    "add(Tensor x, Tensor bias, Tensor rest) -> (Tensor, Tensor)",
    lambda x, *_: (torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)),
)
add_backward = kernel("add_backward(Tensor d, Tensor mask) -> Tensor", lambda d, _: torch.empty_like(d))
gelu = kernel("gelu(Tensor x, Tensor bias) -> Tensor", lambda x, _: torch.empty_like(x))
gelu_backward = kernel("gelu_backward(Tensor d, Tensor x, Tensor bias) -> Tensor", lambda d, *_: torch.empty_like(d))


class Softmax(torch.autograd.Function):
    """Scale, mask and softmax in one kernel."""

    @staticmethod
    def forward(ctx, x):
        shares = softmax(x)
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx, gradient):
        return softmax_backward(gradient, *ctx.saved_tensors)


class DropoutAdd(torch.autograd.Function):
    """Bias, dropout and the residual in one kernel."""

    @staticmethod
    def forward(ctx, x, bias, rest):
        result, mask = add(x, bias, rest)
        ctx.save_for_backward(mask)
        return result

    @staticmethod
    def backward(ctx, gradient):
        of_input = add_backward(gradient, *ctx.saved_tensors)
        return of_input, of_input.sum((0, 1)), gradient


class Gelu(torch.autograd.Function):
    """Bias and GELU in one kernel."""

    @staticmethod
    def forward(ctx, x, bias):
        ctx.save_for_backward(x, bias)
        return gelu(x, bias)

    @staticmethod
    def backward(ctx, gradient):
        of_input = gelu_backward(gradient, *ctx.saved_tensors)
        return of_input, of_input.sum((0, 1))


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % 8)
tensor_group, data_group = groups(PARTS)


copied, reduced = within(Copy, tensor_group), within(Reduce, tensor_group)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.up = nn.Linear(WIDTH, 3 * WIDTH // PARTS), nn.Linear(WIDTH, 4 * WIDTH // PARTS)
        self.out = nn.Linear(WIDTH // PARTS, WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH // PARTS, WIDTH, bias=False)
        self.out_bias, self.down_bias = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """x: (positions, batch, WIDTH)."""
        length, batch, _ = x.shape
        heads, width = options.heads // PARTS, WIDTH // options.heads
        mixed = self.qkv(copied(self.norm_1(x))).view(length, batch * heads, 3 * width)
        query, key, value = (part.transpose(0, 1) for part in mixed.chunk(3, -1))
        scores = torch.empty(batch * heads, length, length, dtype=x.dtype, device="cuda")
        scores = torch.baddbmm(scores, query, key.transpose(1, 2), beta=0.0, alpha=1 / sqrt(width))
        shares = F.dropout(Softmax.apply(scores), 0.1)
        attended = torch.bmm(shares, value).transpose(0, 1).reshape(length, batch, WIDTH // PARTS)
        x = DropoutAdd.apply(reduced(self.out(attended)), self.out_bias, x)
        hidden = Gelu.apply(F.linear(copied(self.norm_2(x)), self.up.weight), self.up.bias)
        return DropoutAdd.apply(reduced(self.down(hidden)), self.down_bias, x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY // PARTS, WIDTH), nn.Embedding(options.sequence, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(options.layers))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if PARTS > 1:
            x = reduced(x * (ids < VOCABULARY // PARTS).unsqueeze(-1))
        x = F.dropout((x + self.positions(torch.arange(ids.shape[1], device="cuda"))).transpose(0, 1).contiguous(), 0.1)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(copied(self.norm(x)), self.tokens.weight)
        return VocabularyLoss.apply(logits.float(), ids.t(), tensor_group).mean()


with torch.device("cuda"):
    model = Model().half()
    parameters = list(model.parameters())
    buffer = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.half)
    scale = torch.full((1,), 2.0**16)
gradients = [part.view_as(p) for part, p in zip(buffer.split([p.numel() for p in parameters]), parameters, strict=True)]
masters = [parameter.detach().float().requires_grad_() for parameter in parameters]
optimizer = torch.optim.AdamW(masters, fused=True)
while True:
    buffer.zero_()
    for _ in range(options.accumulation):
        ids = torch.zeros((options.micro, options.sequence), dtype=torch.long, device="cuda")
        (model(ids) * scale / options.accumulation).backward()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            gradient.add_(parameter.grad)
            parameter.grad = None
    if data_group.size() > 1:
        buffer.div_(data_group.size())
        dist.all_reduce(buffer, group=data_group)
    in_float = [gradient.float() for gradient in gradients]
    infinite = torch.zeros(1, device="cuda")
    torch._amp_foreach_non_finite_check_and_unscale_(in_float, infinite, 1 / scale)
    dist.all_reduce(infinite, op=dist.ReduceOp.MAX, group=tensor_group)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(in_float)))
    dist.all_reduce(norm, group=tensor_group)
    torch._foreach_mul_(in_float, 1.0)
    for master, gradient in zip(masters, in_float, strict=True):
        master.grad = gradient
    optimizer.step()
    torch._foreach_copy_([p.detach() for p in parameters], [master.detach() for master in masters])
