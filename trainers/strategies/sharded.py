"""`Sharded`: what the strategies have in common in which each rank steps shares of the parameters."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import collectives
from collectives.runtime import lazily
from trainers.replica_check import first_mismatch
from trainers.strategies.base import MakeOptimizer, Strategy
from trainers.strategies.flat_vector import FlatVector
from trainers.strategies.sharding_guard import (
    Guard,
    ShardingError,
    check_shardable,
    forgotten_error,
    unsynchronised_error,
)
from trainers.strategies.share_gradient import ShareGradient, make_way, own_gradient, stand_in_for


class ShardedWeights:
    """Parameters of one dtype, moved into one vector, of which each rank has an equal share.

    home: where the parameters lie. share: this rank's, a part of its memory. share_gradient: the mean gradient of that,
    once there is one.
    is_kept: whether `home` stays where it is, so that ranks may share its memory.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, is_kept: bool = True) -> None:
        self.parameters = list(parameters)
        self.group = group
        self.home = FlatVector(parameters, multiple_of=group.size(), group=group if is_kept else None)
        for parameter, view in zip(parameters, self.home.views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.share = nn.Parameter(self.own_part(self.home.vector))
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
        collectives.all_gather_into_tensor(self.home.vector, self.share.detach(), self.group)

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """Return the parts of all ranks, (share,) each, one after the other and without padding: (num_elements,)."""
        _require_numbers_of_elements(part, part.shape == self.share.shape)
        gathered = part.new_empty(self.home.vector.shape)
        collectives.all_gather_into_tensor(gathered, part.contiguous(), self.group)
        return gathered[: self.home.num_elements].clone()

    def own_of_whole(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of what `whole` gave, on whatever number of ranks."""
        _require_numbers_of_elements(whole, whole.shape == (self.home.num_elements,))
        padded = whole.new_zeros(self.home.vector.shape)
        padded[: self.home.num_elements] = whole
        return self.own_part(padded).clone()


def _require_numbers_of_elements(tensor: torch.Tensor, has_right_shape: bool) -> None:
    """Refuse a tensor of another shape, which would be that of one rank alone."""
    if not has_right_shape:
        raise ValueError(f"has shape {tuple(tensor.shape)}: only state with the shape of the parameter can be sharded")


class Sharded(Strategy):
    """A rank steps shares of the parameters, with the mean gradients of these alone.

    Optimizers are the user's own, made for the shares; `watch` lets them save and load states of whole parameters.

    name: of the strategy, for messages.
    """

    name: str

    def share_gradients(self) -> list[torch.Tensor]:
        """Return the gradients that this rank has after a synchronisation."""
        raise NotImplementedError

    def before_stepping(self) -> None:
        """Raise ShardingError unless the gradients of the shares are there and nothing else is."""
        raise NotImplementedError

    def after_stepping(self) -> None:
        """Bring the shares, which have been stepped, into the parameters."""

    def whole(self, share: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Return all ranks' parts of what an optimizer keeps of a share; collective. Raises ValueError if it cannot."""
        raise NotImplementedError

    def own_part(self, share: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of what `whole` gave, on whatever number of ranks. Raises ValueError if it cannot."""
        raise NotImplementedError

    def watch(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Let an optimizer of the shares check its gradients before a step, and save its state whole."""
        # Not by hooks: a class whose step calls that of its base may have them called twice, on some ranks only.
        plain_step = optimizer.step

        def step(_: torch.optim.Optimizer, closure: Callable[[], Any] | None = None, **keywords: Any) -> Any:
            def checked() -> Any:
                assert closure is not None
                loss = closure()
                self.before_stepping()
                return loss

            if closure is None:
                self.before_stepping()
            else:
                keywords["closure"] = checked  # it makes the gradients, as with Lightning
            result = plain_step(**keywords)
            begin_s = time.perf_counter()
            self.after_stepping()
            self.param_sync = begin_s, time.perf_counter()
            return result

        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        optimizer.register_state_dict_post_hook(partial(_map_state, self.whole))
        optimizer.register_load_state_dict_pre_hook(partial(_map_state, self.own_part))
        return optimizer

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


def _map_state(
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    state_dict: dict[str, Any],
) -> dict[str, Any]:
    """Change every tensor of an optimizer's state, given what it is of; a count of steps stays as it is."""
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
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


class ShardedVectors(Sharded):
    """The parameters lie in vectors, and an optimizer sees this rank's share of each as a single parameter.

    So it must work element by element, as SGD, Adam and AdamW do, with the same options for all: `optimizer` tries
    that, and refuses others. A parameter without a gradient counts as one with zeros.

    weights: the vectors.
    """

    weights: Sequence[ShardedWeights]

    def _shard(self, vectors: Sequence[Sequence[nn.Parameter]]) -> list[ShardedWeights]:
        """Move the parameters into vectors, one for each of those lists."""
        self.weights = weights = [ShardedWeights(some, self.group) for some in vectors]
        return weights

    def _guarded(self, gradients: Sequence[FlatVector]) -> Guard:
        """gradients: the vectors in which the gradients lie, if they stay there."""
        weights = self.weights
        return Guard([w.parameters for w in weights], [w.home for w in weights], gradients, self._compare, self.name)

    def _compare(self) -> None:
        if differs := first_mismatch(self.module, self.group, buffers=False):
            raise ShardingError(
                f"{differs}: with {self.name} a rank has the mean gradients of its shard only, so only an optimizer "
                f"made with model.optimizer(...) may change the parameters"
            )

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Make the optimizer of this rank's shares. Raises ValueError if it cannot step shares of the parameters."""
        shares = [weights.share for weights in self.weights]
        check_shardable(make, self.parameters, shares, self.name)
        optimizer: Any = self.watch(make(shares))
        optimizer.add_param_group = self._refuse_group
        optimizer.zero_grad = self._zero_all
        return optimizer  # type: ignore[no-any-return]

    def _refuse_group(self, _: dict[str, Any]) -> None:
        raise ValueError(
            f"{self.name}: the optimizer already steps all parameters of the model: add_param_group cannot add others"
        )

    def _zero_all(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the parameters, from which those of the shares are made, and these."""
        self.forget_shares()
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def forget_shares(self) -> None:
        """Forget the gradients of the shares, and what stands for them at the parameters."""
        for parameter in self.parameters:
            make_way(parameter)
        for weights in self.weights:
            weights.share.grad = None

    def share_gradients(self) -> list[torch.Tensor]:
        return [weights.share_gradient for weights in self.weights]

    def after_stepping(self) -> None:
        for weights in self.weights:
            weights.gather()

    def whole(self, share: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return self._weights_of_share(share).whole(part)

    def own_part(self, share: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        return self._weights_of_share(share).own_of_whole(whole)

    def _weights_of_share(self, share: torch.Tensor) -> ShardedWeights:
        return next(weights for weights in self.weights if weights.share is share)


class ShardedGradients(ShardedVectors):
    """After a synchronised backward pass a rank has the mean gradients of its share, and none at the parameters."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._is_stepped = False  # with the gradients that the shares have now
        for parameter in self.parameters:
            parameter.register_hook(partial(self._before_accumulating, parameter))

    def _before_accumulating(self, parameter: nn.Parameter, _: torch.Tensor) -> None:
        """Let the gradient of a parameter come to its place."""
        if parameter.grad is None and not self._is_stepped and self._weights_of[parameter].share.grad is not None:
            raise forgotten_error(self.name)
        make_way(parameter)

    @lazily
    def _weights_of(self) -> dict[nn.Parameter, ShardedWeights]:
        return {parameter: weights for weights in self.weights for parameter in weights.parameters}

    def refuse_stepped(self) -> None:
        """Raise ShardingError where gradients of two steps would be added up."""
        if self._is_stepped and any(weights.share.grad is not None for weights in self.weights):
            raise ShardingError(
                f"the gradients of the last step are still there: {self.name} keeps them outside the parameters' grad, "
                "so setting that to None does not clear them; call optimizer.zero_grad(), or zero_grad() of the "
                "DataParallel, before the next backward pass"
            )
        self._is_stepped = False

    def synchronise(self) -> None:
        self.on_forward()
        self.on_backward_end()

    def zero_grad(self) -> None:
        self.forget_shares()

    def before_stepping(self) -> None:
        if any(own_gradient(parameter) is not None for parameter in self.parameters):
            raise unsynchronised_error()
        self._is_stepped = True


@torch.no_grad()
def moved_gradients(weights: ShardedWeights, num_ranks: int) -> torch.Tensor:
    """Move the gradients of the parameters into one new vector, with zeros where there is none."""
    flat = FlatVector(weights.home.views, multiple_of=num_ranks)
    for parameter, view in zip(weights.parameters, flat.views, strict=True):
        if (gradient := own_gradient(parameter)) is not None:
            view.copy_(gradient)
        parameter.grad = stand_in_for(parameter)
    return flat.vector
