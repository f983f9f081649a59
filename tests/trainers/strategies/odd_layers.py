"""Models whose layers show less than all of what their backward pass reads, or read parameters otherwise."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint


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

    def result(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        result: torch.Tensor = self.last(x)
        return result


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


class Detached(nn.Linear):
    """The weight is read without gradient beside, which the backward pass does after it has the weight's gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        out = torch.tanh(x @ self.weight.detach())
        return torch.tanh(super().forward(out.detach())) + out


class Caller(nn.Module):
    """Another layer is called between a use of the weight without gradient and one with it."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.other = [other]  # not a module within this one
        self.own = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        out = self.other[0](torch.tanh(x @ self.own.weight.detach()))
        return torch.tanh(self.own(out.detach())) + out


class Callers(Layers):
    """Two that call the first layer, which is called itself, too."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Linear(3, 3))
        self.layers[1], self.layers[2] = Caller(self.layers[0]), Caller(self.layers[0])


class Leaving(nn.Linear):
    """A loss is left in an attribute; it is made of a row of the weight, which is a view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        self.loss = (x * self.weight[1]).pow(2).mean()
        return torch.tanh(super().forward(x))


class LeavingLayers(Layers):
    """Only these losses count."""

    def __init__(self) -> None:
        super().__init__(lambda: Leaving(3, 3))

    def result(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        return x.detach() + sum(layer.loss for layer in self.layers)


class Dropping(nn.Linear):
    """Rank 1 alone computes something that nobody needs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        if dist.get_rank() == 1:
            (x * self.weight[0]).sum()
        return torch.tanh(super().forward(x))


class Writing(nn.Linear):
    """The weight is changed in the forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        self.weight.data.clamp_(-0.3, 0.3)
        return torch.tanh(super().forward(x))


class Nested(Layers):
    """Layers are computed anew in passes within the backward pass; the first one takes part outside of these, too."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh()))

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
    "detached": lambda: Layers(lambda: Detached(3, 3)),
    "callers": Callers,
    "leaving": LeavingLayers,
    "dropping": lambda: Layers(lambda: Dropping(3, 3)),
    "writing": lambda: Layers(lambda: Writing(3, 3)),
    "nested": Nested,
}
