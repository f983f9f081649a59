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


def sent(*tensors: Tensor) -> None:
    """Keep the memory of tensors until the GPU has sent them, as torch 2.7 and earlier did in each call of NCCL."""
    for tensor in tensors:
        tensor.record_stream(torch.cuda.current_stream())


def gather(x: Tensor, group: dist.ProcessGroup, whole: Tensor | None = None) -> tuple[Tensor, dist.Work | None]:
    """Begin to gather the parts of a sequence, and return the whole, in `whole` if given."""
    if group.size() == 1:
        return x, None
    whole = x.new_empty((x.shape[0] * group.size(), *x.shape[1:])) if whole is None else whole
    x = x.contiguous()
    sent(x, whole)
    return whole, dist.all_gather_into_tensor(whole, x, group=group, async_op=True)


def scatter(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, dist.Work | None]:
    """Begin to sum partial results, and return this rank's part of the sequence."""
    if group.size() == 1:
        return x, None
    part = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    x = x.contiguous()
    sent(x, part)
    return part, dist.reduce_scatter_tensor(part, x, group=group, async_op=True)


def finished(result: tuple[Tensor, dist.Work | None]) -> Tensor:
    x, work = result
    if work is not None:
        work.wait()
    return x


class Scatter(torch.autograd.Function):
    """Sum partial results, each rank for its part of the sequence."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return finished(scatter(x, group))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return finished(gather(gradient, ctx.group)), None


class VocabularyLoss(torch.autograd.Function):
    """Cross-entropy of logits in float32, of which each rank has some columns of the vocabulary."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        largest = logits.amax(-1)
        targets = targets.clamp(0, logits.shape[-1] - 1)
        VocabularyLoss._combine(largest, dist.ReduceOp.MAX, group)
        logits = logits - largest.unsqueeze(-1)
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
        return shares.mul_(gradient.unsqueeze(-1)), None, None
