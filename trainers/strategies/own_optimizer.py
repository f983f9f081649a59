"""`OwnOptimizer`: only the optimizer that `model.optimizer(...)` makes may step, or the ranks would train apart."""

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from trainers.strategies.base import MakeOptimizer, Strategy


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


STEPS = 3
TOLERANCE = 1e-4  # of a step: vectorised code may round the last elements otherwise
VALUES = (0.5, -1.0, 2.0, 0.25, 30.0, -20.0, 50.0, 40.0)  # the halves differ: so do their norms
GRADIENTS = (0.01, -0.02, 0.04, 0.03, 800.0, -500.0, 900.0, 700.0)


def check_shardable(
    make: MakeOptimizer, parameters: Sequence[nn.Parameter], shares: Sequence[nn.Parameter], name: str
) -> None:
    """Raise ValueError if an optimizer of shares would silently train otherwise than one of the parameters.

    parameters: those of the model. shares: those that this rank steps. name: of the strategy.
    """
    optimizer = make(list(parameters))
    kind = type(optimizer).__name__
    first, *others = [{**group, "params": None} for group in optimizer.param_groups]
    if any(group != first for group in others):
        raise ValueError(
            f"{kind}: has parameter groups with different options: {name} needs the same options for all parameters; "
            f"use one group, or another strategy"
        )
    for made, given in ((optimizer, parameters), (make(list(shares)), shares)):
        require_exactly(made, given, name)
    if not _is_elementwise(make, {parameter.dim() for parameter in parameters}):
        raise ValueError(
            f"{kind}: its update of an element depends on others, such as a norm over a whole parameter, or on the "
            f"parameter's shape: with {name} a rank sees only its shard of the elements, flattened; use SGD, Adam or "
            f"AdamW, or another strategy"
        )


def require_exactly(optimizer: torch.optim.Optimizer, given: Sequence[nn.Parameter], name: str) -> None:
    """Raise ValueError unless these are the optimizer's parameters. name: of the strategy."""
    if {*map(id, parameters_of(optimizer))} != {*map(id, given)}:
        kind = type(optimizer).__name__
        raise ValueError(
            f"{kind}: must be made of exactly the parameters that the function is passed, which with {name} are this "
            f"rank's shards: write model.optimizer(lambda parameters: {kind}(parameters, ...)), and freeze others "
            f"with requires_grad_(False)"
        )


def _is_elementwise(make: MakeOptimizer, num_dims: set[int]) -> bool:
    """Step a vector, its halves, and the same numbers in parameters of these dimensions, each with its own optimizer.

    Returns False, too, for an optimizer that cannot step alone, such as one that needs a closure.
    """
    shapes = [(2, 4) if num == 2 else (2, 2, 2, *[1] * (num - 3)) for num in sorted(num_dims - {0, 1})]
    with torch.random.fork_rng(devices=[]):
        try:
            values, gradients = torch.tensor(VALUES), torch.tensor(GRADIENTS)
            whole = _stepped(make, values, gradients)
            halves = [_stepped(make, *half) for half in zip(values.chunk(2), gradients.chunk(2), strict=True)]
            shaped = [_stepped(make, values.view(shape), gradients.view(shape)) for shape in shapes]
        except TypeError:
            return False
    return all(torch.allclose(other, whole, TOLERANCE, 1e-6, equal_nan=True) for other in (torch.cat(halves), *shaped))


def _stepped(make: MakeOptimizer, values: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Return by how much a few steps change the values, flattened."""
    torch.manual_seed(0)
    parameter = nn.Parameter(values.clone())
    optimizer = make([parameter])
    for step in range(STEPS):
        parameter.grad = gradients * (1.0 - 0.3 * step)
        optimizer.step()
    return (parameter.detach() - values).flatten()
