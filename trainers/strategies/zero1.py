"""ZeRO stage 1: each rank steps a share of the parameters, and holds the optimizer's state of no more than that."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

import collectives
from trainers.strategies.flat_vector import FlatVector, by_dtype
from trainers.strategies.sharded import Sharded


class Zero1(Sharded):
    """Reduce-scatter the gradients, step the own share, all-gather the parameters: the bytes of an all-reduce.

    The model's parameters come to lie in one vector for each dtype. After a synchronisation a parameter's own `grad` is
    still what this rank has found; whoever steps with it is told.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 5.1.
    """

    name = "zero1"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        weights = self._shard(by_dtype(self.parameters))
        self._gradients = [FlatVector(w.parameters, multiple_of=group.size()) for w in weights]
        self._guard = self._guarded(self._gradients)

    def synchronise(self) -> None:
        self._guard.before_synchronising()
        for weights, gradients in zip(self._weights, self._gradients, strict=True):
            _pack(weights.parameters, gradients.views)
            collectives.reduce_scatter_tensor(weights.share_gradient, gradients.vector, dist.ReduceOp.AVG, self.group)
            weights.show_gradient()
        self._guard.synchronised()

    def before_stepping(self) -> None:
        self._guard.before_stepping()


@torch.no_grad()
def _pack(parameters: Iterable[nn.Parameter], views: Iterable[torch.Tensor]) -> None:
    """Bring every gradient into its view, and let it stay there."""
    for parameter, view in zip(parameters, views, strict=True):
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad is not view:
            view.copy_(parameter.grad)
            parameter.grad = view
