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


NOT_EXACTLY = (
    "must be made of exactly the parameters that the function is passed, which with {name} are this rank's shards: "
    "write model.optimizer(lambda parameters: {kind}(parameters, ...)), and freeze others with requires_grad_(False)"
)
# Eight values and their gradients. The halves differ: so do their norms. No tensor: a recorded program would hold it.
NUMBERS = [[0.5, -1, 2, 0.25, 30, -20, 50, 40], [0.01, -0.02, 0.04, 0.03, 800, -500, 900, 700]]


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
        problem = (
            f"has parameter groups with different options: {name} needs the same options for all parameters; use one "
            f"group, or another strategy"
        )
    elif not (steps_exactly(optimizer, parameters) and steps_exactly(make(list(shares)), shares)):
        problem = NOT_EXACTLY.format(name=name, kind=kind)
    elif not _is_elementwise(make, {parameter.dim() for parameter in parameters}):
        problem = (
            f"its update of an element depends on others, such as a norm over a whole parameter, or on the parameter's "
            f"shape: with {name} a rank sees only its shard of the elements, flattened; use SGD, Adam or AdamW, or "
            f"another strategy"
        )
    else:
        return
    raise ValueError(f"{kind}: {problem}")


def steps_exactly(optimizer: torch.optim.Optimizer, given: Sequence[nn.Parameter]) -> bool:
    """Return whether the optimizer steps these parameters and no others."""
    return {*map(id, parameters_of(optimizer))} == {*map(id, given)}


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
