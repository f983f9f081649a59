"""`Guard`: misuse that would have the ranks of a sharded strategy train apart, unnoticed, is an error instead.

The gradients that a rank finds at its parameters are its own: only those of its share are the mean. Whoever steps or
clips with them, as one may with every other strategy, gets a model that differs between the ranks.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from trainers.strategies.flat_vector import FlatVector


class ShardingError(RuntimeError):
    """A model that is trained with a sharded strategy is treated as if its gradients were the mean over all ranks."""


class ForeignOptimizers:
    """Raises an error, as long as this lives, when an optimizer that was made of these parameters themselves steps.

    name: of the strategy. reason: why it must not. error: what is raised. is_own: tells which ones may step.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        name: str,
        reason: str = "a rank has the mean gradients of its share only",
        error: type[RuntimeError] = ShardingError,
        is_own: Callable[[torch.optim.Optimizer], bool] = lambda _: False,
    ) -> None:
        self._reason, self._error, self._is_own = reason, error, is_own
        self._name = name
        self._own = WeakTensorKeyDictionary(dict.fromkeys(parameters))
        watcher = weakref.WeakMethod(self._refuse)
        hook = register_optimizer_step_pre_hook(lambda optimizer, *_: _call(watcher, optimizer))
        weakref.finalize(self, hook.remove)

    def _refuse(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse a step of an optimizer that is not the strategy's own; called before any optimizer takes one."""
        if self._is_own(optimizer):
            return
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if parameter in self._own:
                raise self._error(
                    f"{type(optimizer).__name__} was constructed from the model's own parameters: with {self._name} "
                    f"{self._reason}, and the parameters of the ranks would diverge; make it with "
                    f"model.optimizer(lambda parameters: {type(optimizer).__name__}(parameters, ...))"
                )


class Guard(ForeignOptimizers):
    """Watches the vectors, too, in which parameters and gradients lie, group by group of the same dtype.

    compare: raises ShardingError if the ranks' parameters differ; collective. name: of the strategy.
    """

    def __init__(
        self,
        parameters: Sequence[Sequence[nn.Parameter]],
        homes: Sequence[FlatVector],
        gradients: Sequence[FlatVector],
        compare: Callable[[], None],
        name: str,
    ) -> None:
        super().__init__((parameter for some in parameters for parameter in some), name)
        self._parameters, self._homes, self._gradients = parameters, homes, gradients
        self._compare = compare
        self._versions: list[int] = []  # of the gradients, after the last synchronisation
        self._unstepped = 0  # synchronisations since the last step

    def before_synchronising(self) -> None:
        """Look whether the parameters are where they were, and, if nothing was stepped, whether the ranks still agree.

        Whoever steps by hand is found at the second step. Whoever only adds up gradients, synchronising each time, pays
        for a comparison at the 1st, 2nd, 4th, 8th ... time.
        """
        for parameters, home in zip(self._parameters, self._homes, strict=True):
            require_at_home(parameters, home, self._name)
        if self._unstepped and self._unstepped & (self._unstepped - 1) == 0:
            self._compare()

    def synchronised(self) -> None:
        """Note that the gradients of the shares are there."""
        self._unstepped += 1
        self._versions = [gradients.vector._version for gradients in self._gradients]

    def before_stepping(self) -> None:
        """Look whether the gradients are those that were synchronised."""
        self._unstepped = 0
        changed = self._versions != [gradients.vector._version for gradients in self._gradients]
        if self._versions and changed:
            raise ShardingError(
                f"gradients were changed after they were synchronised, and {self._name} would ignore the change: clip "
                "with model.clip_grad_norm_(...), and run the last backward pass before a step outside no_sync()"
            )
        if not all(map(_is_home, self._parameters, self._gradients)):
            raise unsynchronised_error()


def require_at_home(parameters: Iterable[nn.Parameter], home: FlatVector, name: str) -> None:
    """Raise ShardingError unless the parameters lie in that vector, in its dtype. name: of the strategy."""
    for parameter, view in zip(parameters, home.views, strict=True):
        if parameter.data_ptr() != view.data_ptr() or parameter.dtype != view.dtype:
            raise moved_error(name)


def forgotten_error(strategy: str) -> ShardingError:
    """Return the error for gradients that somebody has set to None at the parameters alone."""
    return ShardingError(
        f"the gradients of parameters were set to None directly: {strategy} keeps the mean gradients elsewhere and "
        "would accumulate into them; call optimizer.zero_grad(), or zero_grad() of the DataParallel"
    )


def moved_error(name: str) -> ShardingError:
    """Make the error for parameters that are no longer where the strategy has put them."""
    return ShardingError(
        f"the model's parameters have been moved, or have another dtype, since {name} was set up: call model.to(...) "
        "before DataParallel(model, ...), and copy new values into the parameters in place"
    )


def unsynchronised_error() -> ShardingError:
    """Make the error for a step with gradients of this rank alone."""
    return ShardingError(
        "there are gradients that have not been synchronised: run the last backward pass before a step outside "
        "no_sync(), or call model.sync_gradients()"
    )


def _is_home(parameters: Iterable[nn.Parameter], gradients: FlatVector) -> bool:
    """Return whether no parameter has a gradient elsewhere than where it is synchronised."""
    pairs = zip(parameters, gradients.views, strict=True)
    return all(parameter.grad is None or parameter.grad is view for parameter, view in pairs)


def _call(watcher: Any, optimizer: torch.optim.Optimizer) -> None:
    """Call the watcher, unless it has gone."""
    if (method := watcher()) is not None:
        method(optimizer)


MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

STEPS = 3
TOLERANCE = 1e-4  # of a step: vectorised code may round the last elements otherwise
VALUES = (0.5, -1.0, 2.0, 0.25, 30.0, -20.0, 50.0, 40.0)  # the halves differ: so do their norms
GRADIENTS = (0.01, -0.02, 0.04, 0.03, 800.0, -500.0, 900.0, 700.0)


def check_shardable(
    make: MakeOptimizer, parameters: Sequence[nn.Parameter], shares: Sequence[nn.Parameter], name: str
) -> None:
    """Find out beforehand what would train otherwise than without shares, silently.

    parameters: those of the model. name: of the strategy. Raises ValueError, which says what cannot be and what to do.
    """
    of_model = make(list(parameters))
    kind = type(of_model).__name__
    _check_groups(of_model, parameters, kind, name)
    _check_taken(make(list(shares)), shares, kind, name)
    if dependence := _dependence(make, {parameter.dim() for parameter in parameters}):
        raise ValueError(
            f"{kind}: its update of an element depends on {dependence}: with {name} a rank sees only its shard of the "
            f"elements, flattened; use SGD, Adam or AdamW, or another strategy"
        )


def _check_groups(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], kind: str, strategy: str
) -> None:
    groups = [{name: value for name, value in g.items() if name != "params"} for g in optimizer.param_groups]
    for number, group in enumerate(groups):
        differing = sorted(name for name in {*groups[0], *group} if group.get(name) != groups[0].get(name))
        if differing:
            raise ValueError(
                f"{kind}: parameter group {number} differs from group 0 in {', '.join(differing)}: {strategy} needs "
                f"the same options for all parameters; use one group, or another strategy"
            )
    taken = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if taken != {id(parameter) for parameter in parameters}:
        raise ValueError(
            f"{kind}: has {len(taken)} parameters, but {len(parameters)} of the model require a gradient: {strategy} "
            f"steps all of those; freeze the others with requires_grad_(False), or use another strategy"
        )


def _check_taken(optimizer: torch.optim.Optimizer, shares: Sequence[nn.Parameter], kind: str, strategy: str) -> None:
    """Refuse an optimizer that was not made of what `make` is given, but of parameters that `make` knows itself."""
    taken = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if sorted(taken) != sorted(map(id, shares)):
        raise ValueError(
            f"{kind}: was not constructed from the parameters that the function was passed: with {strategy} these are "
            f"the rank's shards; write model.optimizer(lambda parameters: {kind}(parameters, ...))"
        )


def _dependence(make: MakeOptimizer, num_dims: set[int]) -> str | None:
    """Step one parameter, its halves, and the same in other shapes, each with its own optimizer.

    num_dims: of the model's parameters. Returns what makes a difference; None if nothing does.
    """
    values, gradients = torch.tensor(VALUES), torch.tensor(GRADIENTS)
    with torch.random.fork_rng(devices=[]):
        whole = _stepped(make, values, gradients)
        halves = [_stepped(make, *half) for half in zip(values.chunk(2), gradients.chunk(2), strict=True)]
        if whole is None or not _agree(whole, halves):
            return "others, such as a norm over a whole parameter"
        for num in sorted(num_dims - {0, 1}):
            shape = (2, 4) if num == 2 else (2, 2, 2, *[1] * (num - 3))
            if not _agree(whole, [_stepped(make, values.view(shape), gradients.view(shape))]):
                return f"the parameter's shape, such as {shape}"
    return None


def _agree(whole: torch.Tensor, parts: Sequence[torch.Tensor | None]) -> bool:
    together = torch.cat([torch.empty(0), *(part.flatten() for part in parts if part is not None)])
    if together.shape != whole.shape:
        return False
    before = torch.tensor(VALUES)
    return torch.allclose(together - before, whole - before, rtol=TOLERANCE, atol=1e-6, equal_nan=True)


def _stepped(make: MakeOptimizer, values: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor | None:
    """Return the values after a few steps; None if it cannot step alone, as those that need a closure."""
    torch.manual_seed(0)
    parameter = nn.Parameter(values.clone())
    optimizer = make([parameter])
    try:
        for step in range(STEPS):
            parameter.grad = gradients * (1.0 - 0.3 * step)
            optimizer.step()
    except TypeError:
        return None
    return parameter.detach()
