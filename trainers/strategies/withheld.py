"""Tensors that stand where a rank has only a share: of a gradient, or of the values of a parameter."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

import collectives
from trainers.strategies.own_optimizer import ShardingError

backward_pass = torch._C._current_graph_task_id  # the number of the one that is under way, or -1

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
        """Return `part` itself, in the same memory, as such a share."""
        share = part.as_subclass(cls)
        share.group = group
        return share

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute `func` of the plain tensors, and combine the results of the ranks where they are to be one."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            if func in SAME_VALUES:  # as in p.grad.detach().norm()
                return cls.of(result, args[0].group)
            if func in NORMS:
                orders = (*args[1:2], kwargs.get("ord"), kwargs.get("p"))
                order = float(next((value for value in orders if value not in (None, "fro")), 2))
                if isinstance(result, torch.Tensor):
                    return _combined(result, order, args[0].group)
                pairs = zip(result, args[0], strict=True)
                return [_combined(n, order, part.group) if isinstance(part, cls) else n for n, part in pairs]
            if func is torch._amp_foreach_non_finite_check_and_unscale_:
                shares, found_inf, *_ = args
                collectives.all_reduce(found_inf, dist.ReduceOp.MAX, shares[0].group)
            return result


def _combined(norm: torch.Tensor, order: float, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the norm of what all ranks have together. norm: of this rank's part, (); collective."""
    if not order > 0:
        raise ValueError(
            f"norm of order {order}: the order must be greater than 0 for gradients that are sharded among ranks"
        )
    if math.isinf(order):
        collectives.all_reduce(norm, dist.ReduceOp.MAX, group)
        return norm
    powers = norm.double() ** order
    collectives.all_reduce(powers, group=group)
    return (powers ** (1 / order)).to(norm.dtype)


# What may be asked of a withheld tensor: what it is, and what moves modules; not what it holds.
_ALLOWED = {
    "to", "float", "double", "half", "bfloat16", "cpu", "cuda", "is_floating_point", "is_complex",
    "_has_compatible_shallow_copy_type", "__set__", "__hash__", "size", "numel", "dim", "data_ptr", "untyped_storage",
    "get_device", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_",
}  # fmt: skip
_VALUES = ("data", "T", "mT", "H", "mH", "real", "imag")  # properties that are made of the values


class Withheld(torch.Tensor):
    """A tensor whose values are elsewhere: whoever reads or changes them gets a ShardingError.

    With None in place of a gradient, torch's `clip_grad_norm_` and the like would pass over it, and do nothing. Where
    Python does not ask, as in autograd's C++ code, the values are nan.

    bring_back: a function that brings the values; None if nothing can. It is called only within a backward pass, which
    all ranks take alike.
    """

    message = (
        "zero1, zero2 and zero3 leave no gradient in the model's parameters, nor does fsdp after unshard(), because a "
        "rank has the mean gradients of its shard only: clip with model.clip_grad_norm_(...), or use the optimizer's "
        "gradients, [p.grad for group in optimizer.param_groups for p in group['params']]"
    )

    bring_back: Callable[[], object] | None = None

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"<values withheld: {self.message}>"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute `func` if it needs no values, or if they can be brought."""
        is_property = type(func).__name__ == "method-wrapper"
        is_read = is_property and func.__name__ == "__get__" and func.__self__.__name__ in _VALUES
        if func.__name__ in _ALLOWED or (is_property and not is_read):
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        withheld = next(tensor for tensor in tree_leaves([args, kwargs]) if isinstance(tensor, Withheld))
        if withheld.bring_back is None or backward_pass() < 0:
            raise ShardingError(withheld.message)
        withheld.bring_back()
        return func(*args, **(kwargs or {}))


class WithheldParameter(Withheld, nn.Parameter):
    """A parameter whose values are not there. A parameter is of this class for a time, as of UninitializedParameter."""


def without_values(like: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a tensor of that shape, and of the dtype and device of `like`, in the memory of one element."""
    return torch.full((), torch.nan, dtype=like.dtype, device=like.device).expand(shape)


def own_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient that the parameter itself has; None if it has been reduced, or there never was one."""
    return None if isinstance(parameter.grad, Withheld) else parameter.grad


def clear_withheld(parameter: torch.Tensor) -> None:
    """Remove what stands for a reduced gradient: called before one is accumulated there."""
    if isinstance(parameter.grad, Withheld):
        parameter.grad = None
