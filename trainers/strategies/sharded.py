"""`Sharded`: strategies whose ranks step shares of the parameters, and tensors for shares."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

import collectives
from trainers.strategies.base import MakeOptimizer, OwnOptimizer, ShardingError, parameters_of

backward_pass = torch._C._current_graph_task_id  # the number of the one that is under way, or -1

DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
SAME_VALUES = (DATA, torch.Tensor.detach, torch.Tensor.float, torch.Tensor.double, torch.Tensor.to)
NORMS = (torch.linalg.vector_norm, torch.linalg.norm, torch.norm, torch.Tensor.norm, torch._foreach_norm)
# Eight values and their gradients. The halves differ: so do their norms. No tensor: a recorded program would hold it.
NUMBERS = [[0.5, -1, 2, 0.25, 30, -20, 50, 40], [0.01, -0.02, 0.04, 0.03, 800, -500, 900, 700]]

MOVED = (
    "the model's parameters have been moved, or have another dtype, since they were sharded: call model.to(...) before "
    "DataParallel(model, ...), and copy new values into the parameters in place"
)
MapState = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of a share, and of what an optimizer keeps of it


class Sharded(OwnOptimizer):
    """A strategy whose ranks step shares of the parameters, and have the mean gradients of only these.

    The optimizer's state is saved and loaded as the state of whole parameters.
    """

    share_gradients: Callable[[], list[torch.Tensor]]  # of this rank, after a synchronisation

    def watch_sharded(
        self, optimizer: torch.optim.Optimizer, gather: MapState, own_part: MapState
    ) -> torch.optim.Optimizer:
        """Watch the optimizer's steps; save and load its state whole.

        gather: maps a share and a tensor of its state to all ranks' state; collective. own_part: the inverse. Both
        raise ValueError for a tensor that cannot be sharded.
        """
        optimizer.register_state_dict_post_hook(partial(_map_state, gather))
        optimizer.register_load_state_dict_pre_hook(partial(_map_state, own_part))
        return self.watch(optimizer)

    def gradient_norm(self) -> torch.Tensor:
        norms = [part.norm().float() for part in self.share_gradients()]
        squares = torch.stack(norms).square().sum() if norms else torch.zeros(())
        collectives.all_reduce(squares, group=self.group)
        return squares.sqrt()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        norm = self.gradient_norm()
        for part in self.share_gradients():  # as torch's own does
            part.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm


def _map_state(change: MapState, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    stepped = parameters_of(optimizer)
    state: dict[int, dict[str, Any]] = {}
    for index, values in state_dict["state"].items():
        state[index] = dict(values)
        for name, value in values.items():
            if torch.is_tensor(value) and value.dim():
                try:
                    state[index][name] = change(stepped[index], value)
                except ValueError as error:
                    raise ValueError(f"state {index}, {name}: {error}") from error
    return {**state_dict, "state": state}


def check_shardable(
    make: MakeOptimizer, parameters: Sequence[nn.Parameter], shares: Sequence[nn.Parameter], name: str
) -> None:
    """Raise ValueError if an optimizer of shares would train differently from one of whole parameters."""
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
    """Raise `error` unless the optimizer steps exactly these parameters. name: the strategy's."""
    if {*map(id, parameters_of(optimizer))} != {*map(id, given)}:
        kind = type(optimizer).__name__
        raise error(
            f"{kind}: must be made of exactly the parameters that the function is passed, which with {name} are this "
            f"rank's shards: write model.optimizer(lambda parameters: {kind}(parameters, ...)), and freeze others with "
            f"requires_grad_(False)"
        )


def _is_elementwise(make: MakeOptimizer, num_dims: set[int]) -> bool:
    """Whether two halves, stepped as vectors, change like a whole of these dimensions."""
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
    torch.manual_seed(0)
    parameter = nn.Parameter(numbers[0].reshape(shape).clone())
    optimizer = make([parameter])
    for factor in (1.0, 0.7, 0.4):
        parameter.grad = numbers[1].reshape(shape) * factor
        optimizer.step()
    return parameter.detach().flatten() - numbers[0]


class ShareGradient(torch.Tensor):
    """A rank's share of a gradient: norms cover all shares, and GradScaler sees infinities of any rank.

    `clip_grad_norm_` and GradScaler are therefore collective.
    """

    group: dist.ProcessGroup

    @classmethod
    def of(cls, part: torch.Tensor, group: dist.ProcessGroup) -> Self:
        share = part.as_subclass(cls)
        share.group = group
        return share

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
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


# Functions of a withheld tensor that do not read its values: what it is, and what moves modules.
_ALLOWED = {
    "to", "float", "double", "half", "bfloat16", "cpu", "cuda", "is_floating_point", "is_complex",
    "_has_compatible_shallow_copy_type", "__set__", "__hash__", "size", "numel", "dim", "data_ptr", "untyped_storage",
    "get_device", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_",
}  # fmt: skip
_VALUES = ("data", "T", "mT", "H", "mH", "real", "imag")  # properties that are made of the values


class Withheld(torch.Tensor):
    """A tensor whose values are elsewhere: reading or changing them raises ShardingError.

    With a gradient of None, torch's `clip_grad_norm_` would silently skip the parameter. autograd's C++ code is not
    intercepted, and reads nan.

    bring_back: fetches the values; called only within a backward pass, which all ranks take alike.
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
    """A parameter without values, temporarily, like UninitializedParameter."""


def without_values(like: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a tensor of that shape, like `like`, in the memory of one element."""
    return torch.full((), torch.nan, dtype=like.dtype, device=like.device).expand(shape)


def own_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the parameter's own gradient; None if it is reduced or missing."""
    return None if isinstance(parameter.grad, Withheld) else parameter.grad


def clear_withheld(parameter: torch.Tensor) -> None:
    """Remove the placeholder of a reduced gradient, before a gradient is accumulated."""
    if isinstance(parameter.grad, Withheld):
        parameter.grad = None
