"""`ShardedOptimizer`: an optimizer that steps this rank's share of the parameters and gathers the others' shares."""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import collectives
from trainers.strategies.flat_vector import FlatVector
from trainers.strategies.share_gradient import ShareGradient, make_way


class ShardedWeights:
    """Parameters of one dtype, moved into one vector, of which each rank has an equal share.

    share: this rank's, a part of the vector's own memory. share_gradient: its mean gradient, once there is one.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
        self.parameters = list(parameters)
        self.group = group
        self._flat = FlatVector(parameters, multiple_of=group.size())
        for parameter, view in zip(parameters, self._flat.views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.share = nn.Parameter(self.own_part(self._flat.vector))
        self.share_gradient = torch.zeros_like(self.share, requires_grad=False)
        self._shown_gradient = ShareGradient.of(self.share_gradient, group)

    def own_part(self, vector: torch.Tensor) -> torch.Tensor:
        """The share of this rank of a vector that is as long as that of the parameters."""
        return vector.view(self.group.size(), -1)[self.group.rank()]

    def add_gradient(self, part: torch.Tensor) -> None:
        """To that of the share, which there is none of after `zero_grad`. part: a mean, (share,)."""
        if self.share.grad is None:
            self.share_gradient.copy_(part)
            self.show_gradient()
        else:
            self.share_gradient.add_(part)

    def show_gradient(self) -> None:
        """Let the optimizer find the gradient of the share."""
        self.share.grad = self._shown_gradient

    def gather(self) -> None:
        """Bring every rank's share into the parameters."""
        collectives.all_gather_into_tensor(self._flat.vector, self.share.detach(), self.group)

    def after_step(self) -> None:
        """The share has been stepped."""
        self.gather()

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """Every rank's `part`, (share,), one after the other, without what pads them: (num_elements,)."""
        gathered = part.new_empty(self._flat.vector.shape)
        collectives.all_gather_into_tensor(gathered, part.contiguous(), self.group)
        return gathered[: self._flat.num_elements].clone()

    def own_of_whole(self, whole: torch.Tensor) -> torch.Tensor:
        """What `whole` was made of on this rank, whatever the number of ranks was then."""
        padded = whole.new_zeros(self._flat.vector.shape)
        padded[: self._flat.num_elements] = whole
        return self.own_part(padded).clone()

    @property
    def home(self) -> FlatVector:
        """Where the parameters lie."""
        return self._flat

    @property
    def num_elements(self) -> int:
        """Of all parameters together."""
        return self._flat.num_elements


class ShardedOptimizer(torch.optim.Optimizer):
    """`inner`, made for the shares, as an optimizer of the whole model; a learning rate scheduler can take it.

    check: called before a step is taken, with the gradients there; may raise. name: of the strategy.
    gather_s: how long the last step has taken to gather the parameters.
    """

    def __init__(
        self, inner: torch.optim.Optimizer, weights: Sequence[ShardedWeights], check: Callable[[], None], name: str
    ) -> None:
        self._settled = False
        super().__init__(inner.param_groups, inner.defaults)  # the very same dicts: who sets a rate here sets it there
        self._settled = True
        self._inner = inner
        self._check = check
        self._name = name
        self._weights = list(weights)
        self.state = inner.state
        self.gather_s = 0.0

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step the own share, then gather; a collective call. closure: called once, before anything is stepped."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check()
        self._inner.step()
        begin_s = time.perf_counter()
        for weights in self._weights:
            weights.after_step()
        self.gather_s = time.perf_counter() - begin_s
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: which parameters there are is settled when the model is wrapped. Raises ValueError."""
        if self._settled:
            raise ValueError(f"{self._name} steps all parameters of the model already: no group can be added")
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the parameters, from which those of the shares are made."""
        for parameter in (p for weights in self._weights for p in weights.parameters):
            make_way(parameter)
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
        for weights in self._weights:
            weights.share.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The state of all shares put together, the same on every rank and for any number of them; collective."""
        shares = self._inner.state_dict()
        return {**shares, "state": self._mapped(shares["state"], _is_of_share, ShardedWeights.whole)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep this rank's share of what `state_dict` gave, here or on another number of ranks."""
        # A copy, as the inner optimizer takes tensors over.
        given = copy.copy(state_dict)
        given["state"] = self._mapped(given["state"], _is_of_whole, ShardedWeights.own_of_whole)
        self._inner.load_state_dict(given)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def _mapped(
        self,
        state: dict[int, dict[str, Any]],
        concerns: Callable[[ShardedWeights, Any], bool],
        change: Callable[[ShardedWeights, torch.Tensor], torch.Tensor],
    ) -> dict[int, dict[str, Any]]:
        """`state` with every tensor changed that is of a share, or of the whole; a count of steps is neither."""
        for index, values in state.items():
            for name, value in values.items():
                _refuse_other_shape(f"state {index}, {name}", value, concerns(self._weights[index], value))
        return {
            index: {
                name: change(self._weights[index], value) if concerns(self._weights[index], value) else value
                for name, value in values.items()
            }
            for index, values in state.items()
        }


def _refuse_other_shape(place: str, value: object, has_right_shape: bool) -> None:
    """A tensor of another shape would be that of one rank alone."""
    if isinstance(value, torch.Tensor) and value.dim() > 0 and not has_right_shape:
        raise ValueError(f"{place}: is of shape {tuple(value.shape)}: only numbers for each element can be shared")


def _is_of_share(weights: ShardedWeights, value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == weights.share.shape and value.dim() > 0


def _is_of_whole(weights: ShardedWeights, value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() == weights.num_elements
