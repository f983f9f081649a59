"""Guards of ranks that hold shares, or step alone: whatever would train them apart is an error.

`OwnOptimizer`: only the optimizer that `model.optimizer(...)` makes may step. `ShareGradient` and `Withheld`: tensors
that stand where a rank has only a share, of a gradient or of the values of a parameter.
"""

import math
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MethodType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

import collectives
from trainers.strategies.base import MakeOptimizer, Strategy

backward_pass = torch._C._current_graph_task_id  # the number of the one that is under way, or -1

DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
SAME_VALUES = (DATA, torch.Tensor.detach, torch.Tensor.float, torch.Tensor.double, torch.Tensor.to)
NORMS = (torch.linalg.vector_norm, torch.linalg.norm, torch.norm, torch.Tensor.norm, torch._foreach_norm)
# Eight values and their gradients. The halves differ: so do their norms. No tensor: a recorded program would hold it.
NUMBERS = [[0.5, -1, 2, 0.25, 30, -20, 50, 40], [0.01, -0.02, 0.04, 0.03, 800, -500, 900, 700]]


class ShardingError(RuntimeError):
    """A model is used in a way with which its ranks would train apart, or otherwise than asked."""


class OwnOptimizer(Strategy):
    """A strategy that takes part in the steps of its optimizer.

    name: of the strategy, for messages.
    """

    name: str
    _is_stepping = False

    def before_stepping(self) -> None:
        """Prepare for a step."""

    def check_gradients(self) -> None:
        """Raise ShardingError unless the optimizer has the gradients that it must step with."""

    def after_stepping(self) -> None:
        """Communicate what the step has changed."""

    def watch(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Let the strategy take part in the steps of `optimizer`."""
        # Not by hooks: a class whose step calls that of its base may have them called twice, on some ranks only.
        plain_step = optimizer.step

        def step(_: torch.optim.Optimizer, closure: Callable[[], Any] | None = None, **keywords: Any) -> Any:
            def checked() -> Any:
                loss = closure() if closure else None
                self.check_gradients()
                return loss

            self._is_stepping = True
            try:
                self.before_stepping()
                if closure:
                    keywords["closure"] = checked  # it makes the gradients, as with Lightning
                else:
                    checked()
                result = plain_step(**keywords)
            finally:
                self._is_stepping = False
            begin_s = time.perf_counter()
            self.after_stepping()
            self.param_sync = begin_s, time.perf_counter()
            return result

        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        return optimizer

    def refuse_others(self, parameters: Iterable[nn.Parameter]) -> None:
        """Raise ShardingError, as long as this lives, when another optimizer of these parameters steps."""
        watched, this = WeakTensorKeyDictionary(dict.fromkeys(parameters)), weakref.ref(self)

        def refuse(optimizer: torch.optim.Optimizer, *_: object) -> None:
            strategy = this()
            # An optimizer may step others, as Lookahead does.
            if strategy and not strategy._is_stepping and any(p in watched for p in parameters_of(optimizer)):
                kind = type(optimizer).__name__
                raise ShardingError(
                    f"{kind} was constructed from the model's own parameters: with {strategy.name} the parameters of "
                    f"the ranks would diverge; make it with model.optimizer(lambda parameters: {kind}(parameters, ...))"
                )

        weakref.finalize(self, register_optimizer_step_pre_hook(refuse).remove)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def check_shardable(
    make: MakeOptimizer, parameters: Sequence[nn.Parameter], shares: Sequence[nn.Parameter], name: str
) -> None:
    """Raise ValueError if an optimizer of shares would silently train otherwise than one of the parameters.

    parameters: those of the model. shares: those that this rank steps. name: of the strategy.
    """
    for given in (parameters, shares):
        optimizer = make(list(given))
        kind = type(optimizer).__name__
        first, *others = [{**group, "params": None} for group in optimizer.param_groups]
        if any(group != first for group in others):
            raise ValueError(
                f"{kind}: has parameter groups with different options: {name} needs the same options for all "
                f"parameters; use one group, or another strategy"
            )
        require_exactly(optimizer, given, name, ValueError)
    if not _is_elementwise(make, {parameter.dim() for parameter in parameters}):
        raise ValueError(
            f"{kind}: its update of an element depends on others, such as a norm over a whole parameter, or on the "
            f"parameter's shape: with {name} a rank sees only its shard of the elements, flattened; use SGD, Adam or "
            f"AdamW, or another strategy"
        )


def require_exactly(
    optimizer: torch.optim.Optimizer, given: Sequence[nn.Parameter], name: str, error: type[Exception]
) -> None:
    """Raise the error unless the optimizer steps these parameters and no others. name: of the strategy."""
    if {*map(id, parameters_of(optimizer))} != {*map(id, given)}:
        kind = type(optimizer).__name__
        raise error(
            f"{kind}: must be made of exactly the parameters that the function is passed, which with {name} are this "
            f"rank's shards: write model.optimizer(lambda parameters: {kind}(parameters, ...)), and freeze others with "
            f"requires_grad_(False)"
        )


def _is_elementwise(make: MakeOptimizer, num_dims: set[int]) -> bool:
    """Step two halves as vectors, and the same numbers in parameters of these dimensions, each with its own optimizer.

    Returns False, too, for an optimizer that cannot step alone, such as one that needs a closure.
    """
    shapes = [(8,), *((2, 4) if num == 2 else (2, 2, 2, *[1] * (num - 3)) for num in num_dims - {0, 1})]
    with torch.random.fork_rng(devices=[]):
        try:
            numbers = torch.tensor(NUMBERS)
            halves = torch.cat([_changes(make, half, (4,)) for half in numbers.split(4, dim=1)])
            whole = [_changes(make, numbers, shape) for shape in shapes]
        except TypeError:
            return False
    # Vectorised code may round the last elements otherwise.
    return all(torch.allclose(halves, changes, 1e-4, 1e-6, equal_nan=True) for changes in whole)


def _changes(make: MakeOptimizer, numbers: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return by how much three steps change a parameter of that shape, flattened. numbers: values and gradients."""
    torch.manual_seed(0)
    parameter = nn.Parameter(numbers[0].reshape(shape).clone())
    optimizer = make([parameter])
    for factor in (1.0, 0.7, 0.4):
        parameter.grad = numbers[1].reshape(shape) * factor
        optimizer.step()
    return parameter.detach().flatten() - numbers[0]


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
