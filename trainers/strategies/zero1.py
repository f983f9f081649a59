"""ZeRO stage 1: each rank steps a share of the parameters, and holds the optimizer's state of no more than that."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

import collectives
from trainers.identity import difference
from trainers.strategies.base import MakeOptimizer, Strategy
from trainers.strategies.elementwise import check_shardable
from trainers.strategies.flat_vector import FlatVector, by_dtype
from trainers.strategies.sharded_optimizer import ShardedOptimizer, ShardedWeights
from trainers.strategies.zero1_guard import Guard, ShardingError


class Zero1(Strategy):
    """Reduce-scatter the gradients, step the own share, all-gather the parameters: the bytes of an all-reduce.

    The model's parameters come to lie in one vector for each dtype, and an optimizer sees this rank's share of each as
    a single parameter. So it must work element by element, as SGD, Adam and AdamW do, with the same options for all:
    `optimizer` tries that, and refuses others. A parameter without a gradient counts as one with zeros. After a
    synchronisation a parameter's own `grad` is still what this rank has found; whoever steps with it is told.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 5.1.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._weights = [ShardedWeights(some, group) for some in by_dtype(self.parameters)]
        self._gradients = [FlatVector(w.parameters, multiple_of=group.size()) for w in self._weights]
        self._optimizer: ShardedOptimizer | None = None
        self._guard = Guard(
            [w.parameters for w in self._weights], [w.home for w in self._weights], self._gradients, self._compare
        )

    def _compare(self) -> None:
        if differs := difference(self.module, self.group, buffers=False):
            raise ShardingError(
                f"{differs}: with zero1 only the optimizer that model.optimizer(...) gives may step the parameters, "
                f"as a rank has the mean gradients of its share only"
            )

    def synchronise(self) -> None:
        self._guard.before_synchronising()
        for weights, gradients in zip(self._weights, self._gradients, strict=True):
            _pack(weights.parameters, gradients.views)
            collectives.reduce_scatter_tensor(weights.share_gradient, gradients.vector, dist.ReduceOp.AVG, self.group)
            weights.share.grad = weights.share_gradient
        self._guard.synchronised()

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """As for every strategy. Raises ValueError if what `make` makes cannot step shares of the parameters."""
        shares = [weights.share for weights in self._weights]
        check_shardable(make, self.parameters, shares)
        self._optimizer = ShardedOptimizer(make(shares), self._weights, self._guard.before_stepping)
        return self._optimizer

    def saved_like(self) -> Sequence[torch.Tensor]:
        return [torch.empty(w.num_elements, dtype=w.share.dtype, device="meta") for w in self._weights]

    def gradient_norm(self) -> torch.Tensor:
        norms = [weights.share_gradient.norm().float() for weights in self._weights]
        squares = torch.stack(norms).square().sum()
        collectives.all_reduce(squares, group=self.group)
        return squares.sqrt()

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        norm = self.gradient_norm()
        for weights in self._weights:
            weights.share_gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))  # as torch's clip_grad_norm_
        return norm

    @property
    def gather_s(self) -> float:  # type: ignore[override]
        return self._optimizer.gather_s if self._optimizer else 0.0


@torch.no_grad()
def _pack(parameters: Iterable[nn.Parameter], views: Iterable[torch.Tensor]) -> None:
    """Bring every gradient into its view, and let it stay there."""
    for parameter, view in zip(parameters, views, strict=True):
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad is not view:
            view.copy_(parameter.grad)
            parameter.grad = view
