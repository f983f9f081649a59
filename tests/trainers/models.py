"""Small models and data that the tests of the trainers share; rank and position can be told from every number."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainers.data_parallel import DataParallel

SGD = partial(torch.optim.SGD, lr=0.1)
BUCKETS = "zero2/2e-5"  # MiB: every parameter or two are a bucket


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer with two groups of parameters: no weight decay for biases."""
    held = list(parameters)
    decayed, biases = [p for p in held if p.dim() > 1], [p for p in held if p.dim() < 2]
    return torch.optim.AdamW([{"params": decayed}, {"params": biases, "weight_decay": 0.0}], lr=0.01, weight_decay=0.1)


class Branching(nn.Module):
    """`first` always takes part; `second` only for inputs whose sum is positive; `third` never does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        """x: (batch, 3)."""
        return self.first(x) + self.second(x) if x.sum() > 0 else self.first(x)


class Tied(nn.Module):
    """Two layers with one weight, one frozen layer, and one in another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.again = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.again.weight = self.inner.weight
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.wide = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> Any:
        """x: (batch, 3)."""
        return self.wide(self.frozen(self.again(self.inner(x).tanh())).double()).float()


class Complex(nn.Module):
    """A complex weight beside real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)
        self.turn = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> Any:
        """x: (batch, 3)."""
        return self.last((self.first(x).to(torch.complex64) @ self.turn).real)


class Blocks(nn.Module):
    """Blocks in a list, one of which takes part twice, and parameters before and after them; 4 of two shares are one.

    recompute: do without what the forward passes of blocks would save.
    """

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.LayerNorm(3)])
        self.again = nn.ModuleDict({"one": nn.Linear(3, 3, bias=False)})
        self.again["one"].weight = self.blocks[0].weight

    def forward(self, x: torch.Tensor) -> Any:
        """x: (batch, 3)."""
        out = self.first(x)
        for block in (*self.blocks, self.blocks[1], self.again["one"]):
            out = checkpoint(block, out, use_reentrant=False) if self.recompute else block(out)
        return self.last(out)


class Shared(nn.Module):
    """Three layers with one weight, two with a frozen one, and one that shares its bias with what is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, frozen = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        for layer in (self.layers[1], self.layers[3]):
            layer.weight = self.layers[0].weight  # type: ignore[assignment]
        self.layers.extend([nn.Sequential(nn.Linear(3, 3), frozen), nn.Sequential(frozen, nn.Linear(3, 1))])
        self.layers[4][0].bias = self.first.bias

    def forward(self, x: torch.Tensor) -> Any:
        """x: (batch, 3)."""
        return self.layers(self.first(x))


class Boxed(nn.Module):
    """A layer that returns what hides its tensor, and one that returns a dict of tuples."""

    class Box(nn.Linear):
        """The result is that of a function which it returns."""

        def forward(self, x: torch.Tensor) -> Any:
            """x: (batch, 3)."""
            out = super().forward(x)
            return lambda: out

    class Named(nn.Linear):
        """The result is the second of two."""

        def forward(self, x: torch.Tensor) -> Any:
            """x: (batch, 3)."""
            return {"out": ("result", super().forward(x))}

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([self.Box(3, 3), self.Named(3, 3), self.Box(3, 1)])

    def forward(self, x: torch.Tensor) -> Any:
        """x: (batch, 3)."""
        out = self.layers[1](self.layers[0](x)().tanh())["out"][1]
        return self.layers[2](out.tanh())()


def small_model() -> nn.Module:
    """Odd sizes, 29 parameters, the same weights everywhere."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Softplus(), nn.Linear(2, 1))


def seeded(make: type[nn.Module]) -> nn.Module:
    """A model with the same weights everywhere."""
    torch.manual_seed(2)
    return make()


def inputs(rank: int, count: int = 5) -> torch.Tensor:
    """Each rank's own data: (count, 3)."""
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(100 + rank))


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, place: int) -> None:
    """A training step on the data of that place."""
    optimizer.zero_grad()
    model(inputs(place)).pow(2).mean().backward()
    optimizer.step()


def parameters_of(model: nn.Module) -> list[torch.Tensor]:
    """Return copies of the parameters as they are now."""
    return [p.detach().clone() for p in model.parameters()]


def backward(parallel: DataParallel, step: int) -> torch.Tensor:
    """Run the backward pass of a step on this rank's own data, and return the loss."""
    loss: torch.Tensor = parallel(inputs(parallel.group.rank() + 7 * step)).pow(2).mean()
    loss.backward()
    return loss


def mean_gradients(model: nn.Module, num_ranks: int, count: int = 5) -> list[torch.Tensor | None]:
    """Of the squared outputs' mean over all ranks' data, from one process."""
    model = copy.deepcopy(model)
    model(torch.cat([inputs(rank, count) for rank in range(num_ranks)])).pow(2).mean().backward()
    return [None if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]


# What is odd about models with layers, by name.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "sequential": small_model,
    "tied": partial(seeded, Tied),
    "blocks": partial(seeded, Blocks),
    "recomputed": partial(seeded, partial(Blocks, recompute=True)),  # type: ignore[arg-type]
    "shared": partial(seeded, Shared),
    "boxed": partial(seeded, Boxed),
    "branching": partial(seeded, Branching),
}
