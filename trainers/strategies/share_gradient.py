"""Tensors that stand in `grad` where ranks have shares of gradients, so that torch does not take these for whole."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist

import collectives
from trainers.strategies.sharding_guard import ShardingError

# What a module that is moved, as by `model.to(...)`, does with gradients.
CONVERSIONS = ("to", "float", "double", "half", "bfloat16", "cpu", "cuda")
MOVING = (*CONVERSIONS, "is_floating_point", "is_complex", "_has_compatible_shallow_copy_type", "__set__")
DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
SAME_VALUES = (DATA, torch.Tensor.detach, torch.Tensor.float, torch.Tensor.double, torch.Tensor.to)
NORMS = (torch.linalg.vector_norm, torch.linalg.norm, torch.norm, torch.Tensor.norm, torch._foreach_norm)


class ShareGradient(torch.Tensor):
    """The share of a gradient that this rank has: a norm is that of all shares, and GradScaler finds what any rank has.

    So torch's `clip_grad_norm_` and `torch.amp.GradScaler` do on every rank what they do in one process, which makes
    them collective. Everything else sees this rank's share alone.
    """

    group: dist.ProcessGroup

    @classmethod
    def of(cls, part: torch.Tensor, group: dist.ProcessGroup) -> Self:
        """`part` itself, in the same memory, as such a share."""
        share = part.as_subclass(cls)
        share.group = group
        return share

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute `func` of the plain tensors, and combine the results of the ranks where they are to be one."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            if func in SAME_VALUES:  # as in p.grad.detach().norm()
                return cls.of(result, args[0].group)
            if func in NORMS:
                order = _order(*args[1:2], **kwargs)
                if isinstance(result, torch.Tensor):
                    return _combined(result, order, args[0].group)
                return [
                    _combined(norm, order, part.group) if isinstance(part, cls) else norm
                    for norm, part in zip(result, args[0], strict=True)
                ]
            if func is torch._amp_foreach_non_finite_check_and_unscale_:
                shares, found_inf, *_ = args
                collectives.all_reduce(found_inf, dist.ReduceOp.MAX, shares[0].group)
            return result


def _order(given: Any = None, *, ord: Any = None, p: Any = None, **_: Any) -> float:  # noqa: A002
    """Return the order of a norm that was asked for in one of torch's ways."""
    order = next((value for value in (given, ord, p) if value not in (None, "fro")), 2)
    if not float(order) > 0:
        raise ValueError(
            f"norm of order {order}: the order must be greater than 0 for gradients that are sharded among ranks"
        )
    return float(order)


def _combined(norm: torch.Tensor, order: float, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the norm of what all ranks have together. norm: of this rank's part, (); collective."""
    if math.isinf(order):
        collectives.all_reduce(norm, dist.ReduceOp.MAX, group)
        return norm
    powers = norm.double() ** order
    collectives.all_reduce(powers, group=group)
    return (powers ** (1 / order)).to(norm.dtype)


class ReducedGradient(torch.Tensor):
    """The `grad` of a whole parameter of whose gradient a rank has a share; whoever computes with it gets an error.

    With None in its place, torch's `clip_grad_norm_` and the like would pass over it, and do nothing.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Raise ShardingError, unless the model is only moved."""
        if func.__name__ not in MOVING:
            raise ShardingError(
                "zero2 and zero3 leave no gradient in the model's parameters, nor does fsdp after unshard(), because a "
                "rank has the mean gradients of its shard only: clip with model.clip_grad_norm_(...), or use the "
                "optimizer's gradients, [p.grad for group in optimizer.param_groups for p in group['params']]"
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result.as_subclass(cls) if isinstance(result, torch.Tensor) else result


def stand_in_for(parameter: torch.Tensor) -> ReducedGradient:
    """Return the `grad` of a parameter whose gradient is elsewhere; it takes no memory."""
    one = torch.empty((), dtype=parameter.dtype, device=parameter.device)
    return one.expand(parameter.shape).as_subclass(ReducedGradient)


def own_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient that the parameter itself has; None if it has been reduced, or there never was one."""
    return None if isinstance(parameter.grad, ReducedGradient) else parameter.grad


def make_way(parameter: torch.Tensor) -> None:
    """Remove what stands for a reduced gradient: called before one is accumulated there."""
    if isinstance(parameter.grad, ReducedGradient):
        parameter.grad = None
