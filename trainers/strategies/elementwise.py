"""Whether an optimizer can step shares of the parameters: it must treat each element by itself, and all alike."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

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
            f"{kind}: what it does with an element depends on {dependence}: with {name} a rank sees only its share of "
            f"all elements, in one dimension; take SGD, Adam or AdamW, or another strategy"
        )


def _check_groups(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], kind: str, strategy: str
) -> None:
    groups = [{name: value for name, value in g.items() if name != "params"} for g in optimizer.param_groups]
    for number, group in enumerate(groups):
        differing = sorted(name for name in {*groups[0], *group} if group.get(name) != groups[0].get(name))
        if differing:
            raise ValueError(
                f"{kind}: group {number} of the parameters has another {', '.join(differing)} than group 0: {strategy} "
                f"steps all with the same options; give one group, or take another strategy"
            )
    taken = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if taken != {id(parameter) for parameter in parameters}:
        raise ValueError(
            f"{kind}: has {len(taken)} parameters, the model {len(parameters)} that require a gradient: {strategy} "
            f"steps all of them; switch the others off with requires_grad_(False), or take another strategy"
        )


def _check_taken(optimizer: torch.optim.Optimizer, shares: Sequence[nn.Parameter], kind: str, strategy: str) -> None:
    """It must be made of what `make` is given, not of parameters that `make` knows itself."""
    taken = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if sorted(taken) != sorted(map(id, shares)):
        raise ValueError(
            f"{kind}: was not made of the parameters that were given, but of others: with {strategy} a rank steps its "
            f"share of them, and model.optimizer(lambda parameters: {kind}(parameters, ...)) must use what it is given"
        )


def _dependence(make: MakeOptimizer, num_dims: set[int]) -> str | None:
    """Step one parameter, its halves, and the same in other shapes, each with an optimizer of its own.

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
    """The values after a few steps; None if it cannot step by itself, as those that need a closure."""
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
