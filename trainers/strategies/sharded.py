"""`Sharded`: what the strategies have in common in which each rank steps a share of the parameters."""

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import collectives
from collectives.runtime import lazily
from trainers.replica_check import first_mismatch
from trainers.strategies.base import MakeOptimizer, Strategy
from trainers.strategies.flat_vector import FlatVector
from trainers.strategies.sharding_guard import Guard, ShardingError, check_shardable, unsynchronised_error
from trainers.strategies.share_gradient import ReducedGradient, ShareGradient, make_way, own_gradient


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
        """Return this rank's share of a vector that is as long as that of the parameters."""
        return vector.view(self.group.size(), -1)[self.group.rank()]

    def add_gradient(self, part: torch.Tensor) -> None:
        """Add a mean gradient, (share,), to that of the share, which has none after `zero_grad`."""
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
        """Bring the shares, which have been stepped, into the parameters."""
        self.gather()

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """Return the parts of all ranks, (share,) each, one after the other and without padding: (num_elements,)."""
        gathered = part.new_empty(self._flat.vector.shape)
        collectives.all_gather_into_tensor(gathered, part.contiguous(), self.group)
        return gathered[: self._flat.num_elements].clone()

    def own_of_whole(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of what `whole` gave, on whatever number of ranks."""
        padded = whole.new_zeros(self._flat.vector.shape)
        padded[: self._flat.num_elements] = whole
        return self.own_part(padded).clone()

    @property
    def home(self) -> FlatVector:
        """Where the parameters lie."""
        return self._flat

    @property
    def num_elements(self) -> int:
        """The number of elements of all parameters."""
        return self._flat.num_elements


class ShardedOptimizer(torch.optim.Optimizer):
    """`inner`, made for the shares, as an optimizer of the whole model; a learning rate scheduler can take it.

    check: called before a step is taken, with the gradients there; may raise. name: of the strategy.
    param_sync_s: how long the last step has taken to gather the parameters.
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
        self.param_sync_s = 0.0

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
        self.param_sync_s = time.perf_counter() - begin_s
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
        """Return the state of all shares put together, the same for any number of ranks; collective."""
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
        """Change every tensor of `state` that is of a share, or of the whole; a count of steps is neither."""
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
    """Refuse a tensor of another shape, which would be that of one rank alone."""
    if isinstance(value, torch.Tensor) and value.dim() > 0 and not has_right_shape:
        raise ValueError(f"{place}: is of shape {tuple(value.shape)}: only numbers for each element can be shared")


def _is_of_share(weights: ShardedWeights, value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == weights.share.shape and value.dim() > 0


def _is_of_whole(weights: ShardedWeights, value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() == weights.num_elements


class Sharded(Strategy):
    """The parameters lie in vectors, and an optimizer sees this rank's share of each as a single parameter.

    So it must work element by element, as SGD, Adam and AdamW do, with the same options for all: `optimizer` tries
    that, and refuses others. A parameter without a gradient counts as one with zeros.

    name: of the strategy, for messages.
    """

    name: str

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._optimizer: ShardedOptimizer | None = None

    def _shard(self, vectors: Sequence[Sequence[nn.Parameter]]) -> list[ShardedWeights]:
        """Move the parameters into vectors, one for each of those lists."""
        self._weights = [ShardedWeights(some, self.group) for some in vectors]
        return self._weights

    def _guarded(self, gradients: Sequence[FlatVector]) -> Guard:
        """gradients: the vectors in which the gradients lie, if they stay there."""
        weights = self._weights
        return Guard([w.parameters for w in weights], [w.home for w in weights], gradients, self._compare, self.name)

    def _compare(self) -> None:
        if differs := first_mismatch(self.module, self.group, buffers=False):
            raise ShardingError(
                f"{differs}: with {self.name} only the optimizer that model.optimizer(...) gives may step the "
                f"parameters, as a rank has the mean gradients of its share only"
            )

    def before_stepping(self) -> None:
        """Raise ShardingError unless the gradients of the shares are there and nothing else is."""
        raise NotImplementedError

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Make the optimizer of this rank's shares. Raises ValueError if it cannot step shares of the parameters."""
        shares = [weights.share for weights in self._weights]
        check_shardable(make, self.parameters, shares, self.name)
        self._optimizer = ShardedOptimizer(make(shares), self._weights, self.before_stepping, self.name)
        return self._optimizer

    def gradient_norm(self) -> torch.Tensor:
        return norm_over_ranks([weights.share_gradient for weights in self._weights], self.group)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        norm = self.gradient_norm()
        clip_parts([weights.share_gradient for weights in self._weights], norm, max_norm)
        return norm

    @property
    def param_sync_s(self) -> float:  # type: ignore[override]
        return self._optimizer.param_sync_s if self._optimizer else 0.0


class ShardedGradients(Sharded):
    """After a synchronised backward pass a rank has the mean gradients of its share, and none at the parameters."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._is_stepped = False  # with the gradients that the shares have now
        for parameter in self.parameters:
            parameter.register_hook(partial(self._before_accumulating, parameter))

    def _before_accumulating(self, parameter: nn.Parameter, _: torch.Tensor) -> None:
        """Let the gradient of a parameter come to its place."""
        if parameter.grad is None and not self._is_stepped and self._weights_of[parameter].share.grad is not None:
            raise ShardingError(
                f"somebody else has set the gradients of parameters to None: {self.name} keeps the mean ones elsewhere "
                "and would add to them; call optimizer.zero_grad() or zero_grad() of the DataParallel"
            )
        make_way(parameter)

    @lazily
    def _weights_of(self) -> dict[nn.Parameter, ShardedWeights]:
        return {parameter: weights for weights in self._weights for parameter in weights.parameters}

    def refuse_stepped(self) -> None:
        """Raise ShardingError where gradients of two steps would be added up."""
        if self._is_stepped and any(weights.share.grad is not None for weights in self._weights):
            raise ShardingError(
                f"the gradients of the last step are still there: with {self.name} they are not those of the "
                "parameters; call optimizer.zero_grad() or zero_grad() of the DataParallel before the next backward "
                "pass"
            )
        self._is_stepped = False

    def synchronise(self) -> None:
        self.on_forward()
        self.on_backward_end()

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            make_way(parameter)
        for weights in self._weights:
            weights.share.grad = None

    def before_stepping(self) -> None:
        if any(own_gradient(parameter) is not None for parameter in self.parameters):
            raise unsynchronised_error()
        self._is_stepped = True


@torch.no_grad()
def take_gradients(weights: ShardedWeights, num_ranks: int) -> torch.Tensor:
    """Move the gradients of the parameters into one new vector, with zeros where there is none."""
    flat = FlatVector(weights.home.views, multiple_of=num_ranks)
    for parameter, view in zip(weights.parameters, flat.views, strict=True):
        if (gradient := own_gradient(parameter)) is not None:
            view.copy_(gradient)
        stand_in = torch.empty((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
        parameter.grad = stand_in.as_subclass(ReducedGradient)
    return flat.vector


def norm_over_ranks(parts: Sequence[torch.Tensor], group: dist.ProcessGroup) -> torch.Tensor:
    """Return the norm of what all ranks have together, (). parts: this rank's; collective."""
    norms = [part.norm().float() for part in parts]
    squares = torch.stack(norms).square().sum() if norms else torch.zeros(())
    collectives.all_reduce(squares, group=group)
    return squares.sqrt()


def clip_parts(parts: Iterable[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Scale gradients of that global norm down to one of at most `max_norm`, as torch's clip_grad_norm_ does."""
    for part in parts:
        part.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
