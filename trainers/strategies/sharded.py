"""`Sharded`: what the strategies have in common in which each rank steps shares of the parameters."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import collectives
from trainers.strategies.base import MakeOptimizer
from trainers.strategies.flat_vector import FlatVector
from trainers.strategies.guards import (
    OwnOptimizer,
    ShardingError,
    ShareGradient,
    Withheld,
    check_shardable,
    clear_withheld,
    own_gradient,
    parameters_of,
    require_exactly,
    without_values,
)

MOVED = (
    "the model's parameters have been moved, or have another dtype, since they were sharded: call model.to(...) before "
    "DataParallel(model, ...), and copy new values into the parameters in place"
)
FORGOTTEN = (
    "the gradients of some parameters were set to None, but ranks have shares of all gradients together: call "
    "optimizer.zero_grad(), and do without a gradient by requires_grad_(False) before DataParallel(model, ...)"
)
MapState = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of a share, and of what an optimizer keeps of it


class Sharded(OwnOptimizer):
    """A rank steps shares of the parameters, with the mean gradients of these alone.

    Optimizers are the user's own, made for the shares; their states are saved and loaded as those of whole parameters.
    """

    share_gradients: Callable[[], list[torch.Tensor]]  # those that this rank has after a synchronisation

    def watch_sharded(
        self, optimizer: torch.optim.Optimizer, gather: MapState, own_part: MapState
    ) -> torch.optim.Optimizer:
        """Watch the steps, and save and load the state whole.

        gather: returns all ranks' parts of what an optimizer keeps of a share; collective. own_part: returns this
        rank's part of that, on whatever number of ranks. Both raise ValueError for what is not in shares.
        """
        optimizer.register_state_dict_post_hook(partial(_map_state, gather))
        optimizer.register_load_state_dict_pre_hook(partial(_map_state, own_part))
        return self.watch(optimizer)

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


def _map_state(change: MapState, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Change every tensor of an optimizer's state, given what it is of; a count of steps stays as it is."""
    stepped = parameters_of(optimizer)
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


class ShardedWeights:
    """Parameters of one dtype, moved into one vector, of which each rank has an equal share.

    home: where the parameters lie. share: this rank's part of it. share_gradient: the mean gradient of the share, once
    there is one. gradients: where gradients lie before they are reduced, if that memory is kept.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, lends: bool = True) -> None:
        self.parameters = list(parameters)
        self.group = group
        self.home = self.vector(lends)
        self.num_elements = self.home.num_elements
        self.gradients: FlatVector | None = None
        for parameter, view in zip(parameters, self.home.views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.share = nn.Parameter(self.own_share(self.home.vector))
        self.share_gradient = torch.zeros_like(self.share, requires_grad=False)
        self._part = self.share_gradient  # where the mean gradient of the last backward pass arrives
        self._shown_gradient = ShareGradient.of(self.share_gradient, group)

    def vector(self, lends: bool = False) -> FlatVector:
        """Return a new vector for all parameters. lends: ranks may share its memory, since it is kept."""
        shapes = [parameter.shape for parameter in self.parameters]
        group = self.group if lends else None
        return FlatVector(shapes, self.parameters[0], multiple_of=self.group.size(), group=group)

    def own_share(self, vector: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of a vector that is as long as that of the parameters."""
        return vector.view(self.group.size(), -1)[self.group.rank()]

    @property
    def are_home(self) -> bool:
        """Whether the parameters lie in their vector, in its dtype."""
        pairs = zip(self.parameters, self.home.views, strict=True)
        return all(p.data_ptr() == view.data_ptr() and p.dtype == view.dtype for p, view in pairs)

    @torch.no_grad()
    def reduce(self, async_op: bool = False) -> dist.Work | None:
        """Reduce-scatter the gradients, which leave the parameters; zeros where there is none. `finish` follows."""
        flat = self.gradients or self.vector()
        for parameter, view in zip(self.parameters, flat.views, strict=True):
            gradient = own_gradient(parameter)
            view.zero_() if gradient is None else view.copy_(gradient)
            parameter.grad = without_values(parameter, parameter.shape).as_subclass(Withheld)
        self._part = self.share_gradient if self.share.grad is None else torch.empty_like(self.share_gradient)
        return collectives.reduce_scatter_tensor(self._part, flat.vector, dist.ReduceOp.AVG, self.group, async_op)

    def finish(self) -> None:
        """Add the mean, when it is there, to what earlier backward passes have left since `zero_grad`."""
        if self._part is not self.share_gradient:
            self.share_gradient.add_(self._part)
        self._part = self.share_gradient
        self.share.grad = self._shown_gradient

    def before_accumulating(self, parameter: nn.Parameter, _: torch.Tensor) -> None:
        """Let a gradient come to its place; called before it is accumulated.

        If the gradients of all parameters have been set to None, that of the share is forgotten.
        """
        if parameter.grad is None and self.share.grad is not None:
            if any(other.grad is not None for other in self.parameters):
                raise ShardingError(FORGOTTEN)
            self.share.grad = None
        clear_withheld(parameter)

    def gather(self) -> None:
        """Bring every rank's share into the parameters."""
        collectives.all_gather_into_tensor(self.home.vector, self.share.detach(), self.group)

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """Return the parts of all ranks, (share,) each, one after the other and without padding: (num_elements,)."""
        _require_numbers_of_elements(part, part.shape == self.share.shape)
        gathered = part.new_empty(self.group.size() * len(part))
        collectives.all_gather_into_tensor(gathered, part.contiguous(), self.group)
        return gathered[: self.num_elements].clone()

    def own_of_whole(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of what `whole` gave, on whatever number of ranks."""
        _require_numbers_of_elements(whole, whole.shape == (self.num_elements,))
        padded = whole.new_zeros(self.group.size() * len(self.share))
        padded[: self.num_elements] = whole
        return self.own_share(padded).clone()


def _require_numbers_of_elements(tensor: torch.Tensor, has_right_shape: bool) -> None:
    """Refuse a tensor of another shape, which would be that of one rank alone."""
    if not has_right_shape:
        raise ValueError(f"has shape {tuple(tensor.shape)}: only state with the shape of the parameter can be sharded")


class ShardedVectors(Sharded):
    """The parameters lie in vectors, and an optimizer sees this rank's share of each as a single parameter.

    So it must work element by element, as SGD, Adam and AdamW do, with the same options for all: `optimizer` tries
    that, and refuses others. A parameter without a gradient counts as one with zeros. After a synchronised backward
    pass a rank has the mean gradients of its share, and none at the parameters.

    weights: the vectors.
    """

    weights: Sequence[ShardedWeights]

    def shard(self, weights: Sequence[ShardedWeights]) -> None:
        """Begin to train these, which have all parameters."""
        self.weights = weights
        self.refuse_others(self.parameters)
        for some in weights:
            for parameter in some.parameters:
                parameter.register_hook(partial(some.before_accumulating, parameter))

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Make the optimizer of this rank's shares. Raises ValueError if it cannot step shares of the parameters."""
        shares = [weights.share for weights in self.weights]
        check_shardable(make, self.parameters, shares, self.name)
        of_share = {id(weights.share): weights for weights in self.weights}
        optimizer: Any = self.watch_sharded(
            make(shares),
            lambda share, part: of_share[id(share)].whole(part),
            lambda share, whole: of_share[id(share)].own_of_whole(whole),
        )
        self._made = optimizer, shares
        optimizer.zero_grad = self.zero_grad
        return optimizer  # type: ignore[no-any-return]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the parameters, from which those of the shares are made, and these."""
        for weights in self.weights:
            weights.share.grad = None
        for parameter in self.parameters:
            clear_withheld(parameter)
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def share_gradients(self) -> list[torch.Tensor]:
        return [weights.share_gradient for weights in self.weights]

    def check_gradients(self) -> None:
        require_exactly(*self._made, self.name, ShardingError)  # a group may have been added since
        for weights in self.weights:
            if any(own_gradient(parameter) is not None for parameter in weights.parameters):
                raise ShardingError(
                    "there are gradients that have not been synchronised: run the last backward pass before a step "
                    "outside no_sync(), or call model.sync_gradients()"
                )
            if weights.share.grad is not None and any(parameter.grad is None for parameter in weights.parameters):
                raise ShardingError(FORGOTTEN)

    def before_stepping(self) -> None:
        if not all(weights.are_home for weights in self.weights):
            raise ShardingError(MOVED)

    def after_stepping(self) -> None:
        for weights in self.weights:
            weights.gather()
        torch.autograd.graph.increment_version(self.parameters)  # for backward passes from before the step
