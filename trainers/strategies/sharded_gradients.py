"""`ShardedGradients`: what the strategies have in common that keep the mean gradients of a rank's share only."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from collectives.runtime import lazily
from trainers.strategies.flat_vector import FlatVector
from trainers.strategies.sharded import Sharded
from trainers.strategies.sharded_optimizer import ShardedWeights
from trainers.strategies.sharding_guard import ShardingError, unsynchronised_error
from trainers.strategies.share_gradient import ReducedGradient, make_way, own_gradient


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
        self.begin()
        self.finish()

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
    """The gradients in one new vector, zeros where there is none; the parameters have no own ones afterwards."""
    flat = FlatVector(weights.home.views, multiple_of=num_ranks)
    for parameter, view in zip(weights.parameters, flat.views, strict=True):
        if (gradient := own_gradient(parameter)) is not None:
            view.copy_(gradient)
        stand_in = torch.empty((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
        parameter.grad = stand_in.as_subclass(ReducedGradient)
    return flat.vector
