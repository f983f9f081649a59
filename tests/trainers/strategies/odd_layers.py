"""Models whose layers show less than all of what their backward pass reads, or read parameters otherwise."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

Rule = Callable[["Layer", torch.Tensor], torch.Tensor]


class Layer(nn.Linear):
    """A linear layer whose forward pass is a function of it and of x: (batch, 3)."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(3, 3)
        self.rule = rule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        return self.rule(self, x)

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        return torch.tanh(super().forward(x))


class Layers(nn.Module):
    """Three layers of one kind and a last one. The result is what `result` makes of its output, as the last one's."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers: Any = nn.ModuleList([make() for _ in range(3)])
        self.last = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        for layer in self.layers:
            x = layer(x)
        return self.result(x)

    def result(self, x: torch.Tensor) -> Any:
        """x: (batch, 3)."""
        return self.last(x)


class Hooked(Layers):
    """Hooks read the weight before and after a forward pass, some of them only from the second one on."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Linear(3, 3))
        self._hook()
        self._is_first = True

    def _hook(self) -> None:
        for layer in self.layers:
            layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * module.weight.norm(),))
            layer.register_forward_hook(lambda module, _, output: output + module.weight.sum() * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        out = super().forward(x)
        if self._is_first:
            self._hook()
        self._is_first = False
        return out


def detached(
    layer: Layer, x: torch.Tensor, other: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
) -> torch.Tensor:
    """The weight is read without gradient beside, which the backward pass does after it has the weight's gradient.

    other: another layer, which is called in between.
    """
    out = other(torch.tanh(x @ layer.weight.detach()))
    return layer.plain(out.detach()) + out


class Callers(Layers):
    """Two that call the first layer, which is called itself, too."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Linear(3, 3))
        for index in (1, 2):
            self.layers[index] = Layer(lambda layer, x: detached(layer, x, self.layers[0]))


def leaving(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """A loss is left in an attribute; it is made of a row of the weight, which is a view."""
    layer.loss = (x * layer.weight[1]).pow(2).mean()
    return layer.plain(x)


class LeavingLayers(Layers):
    """Only these losses count."""

    def result(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        return x.detach() + sum(layer.loss for layer in self.layers)


def dropping(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """Rank 1 alone computes something that nobody needs."""
    if dist.get_rank() == 1:
        (x * layer.weight[0]).sum()
    return layer.plain(x)


def writing(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """The weight is changed in the forward pass."""
    layer.weight.data.clamp_(-0.3, 0.3)
    return layer.plain(x)


class Nested(Layers):
    """Layers are computed anew in passes within the backward pass; the first one takes part outside of these, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        out = x.clone().requires_grad_()
        for layer in self.layers:
            out = checkpoint(layer, out, use_reentrant=True)  # type: ignore[no-untyped-call]
        return self.result(self.layers[0](out))


ODD_MODELS: dict[str, Callable[[], nn.Module]] = {
    # torch's pre-hooks compute the weights.
    "weight norm": lambda: Layers(lambda: nn.utils.weight_norm(nn.Linear(3, 3))),
    "spectral norm": lambda: Layers(lambda: nn.utils.spectral_norm(nn.Linear(3, 3))),
    "hooked": Hooked,
    "detached": lambda: Layers(partial(Layer, detached)),
    "callers": Callers,
    "leaving": lambda: LeavingLayers(partial(Layer, leaving)),
    "dropping": lambda: Layers(partial(Layer, dropping)),
    "writing": lambda: Layers(partial(Layer, writing)),
    "nested": lambda: Nested(partial(Layer, Layer.plain)),
}
