"""Tensor parallelism as Megatron-LM has it, and stand-ins for kernels that other packages bring."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_LIBRARY = torch.library.Library("published", "DEF")


def kernel(schema: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator without arithmetic: one kernel, which reads its arguments and writes its results."""
    _LIBRARY.define(schema)
    name = schema.partition("(")[0]
    _LIBRARY.impl(name, fake, "CompositeExplicitAutograd")
    operator: Callable[..., Any] = getattr(torch.ops.published, name)
    return operator


def groups(width: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Return the groups of this rank: of tensor parallelism, over `width` neighbours, and of data parallelism."""
    mesh = dist.device_mesh.init_device_mesh("cuda", (dist.get_world_size() // width, width), mesh_dim_names=("d", "t"))
    return mesh.get_group("t"), mesh.get_group("d")


def within(function: type[torch.autograd.Function], group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    """Return the function on the tensors of a group; a single rank has nothing to send."""
    return lambda x: function.apply(x, group) if group.size() > 1 else x


class Copy(torch.autograd.Function):
    """Give all ranks an input; sum its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Reduce(torch.autograd.Function):
    """Sum the partial results of all ranks."""

    @staticmethod
    def forward(_: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _gathered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    whole = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
    dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
    return whole


def _scattered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    part = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    dist.reduce_scatter_tensor(part, x.contiguous(), group=group)
    return part


class Gather(torch.autograd.Function):
    """Gather the parts of a sequence."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _scattered(gradient, ctx.group), None


class Scatter(torch.autograd.Function):
    """Sum partial results, each rank for its part of the sequence."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scattered(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradient, ctx.group), None


class VocabularyLoss(torch.autograd.Function):
    """Cross-entropy of logits, of which each rank has some columns of the vocabulary."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.dtype, logits = logits.dtype, logits.float()
        largest = logits.amax(-1)
        targets = targets.clamp(0, logits.shape[-1] - 1)
        VocabularyLoss._combine(largest, dist.ReduceOp.MAX, group)
        logits.sub_(largest.unsqueeze(-1))
        predicted = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        VocabularyLoss._combine(predicted, dist.ReduceOp.SUM, group)
        logits.exp_()
        total = logits.sum(-1)
        VocabularyLoss._combine(total, dist.ReduceOp.SUM, group)
        logits.div_(total.unsqueeze(-1))
        ctx.save_for_backward(logits, targets)
        return total.log() - predicted

    @staticmethod
    def _combine(x: Tensor, op: Any, group: dist.ProcessGroup) -> None:
        if group.size() > 1:
            dist.all_reduce(x, op=op, group=group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        shares, targets = ctx.saved_tensors
        shares.scatter_add_(-1, targets.unsqueeze(-1), torch.full_like(shares[..., :1], -1.0))
        return shares.mul_(gradient.unsqueeze(-1)).to(ctx.dtype), None, None
