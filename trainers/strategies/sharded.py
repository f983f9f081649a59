"""`Sharded`: what the strategies have in common in which each rank steps a share of the parameters."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from trainers.identity import difference
from trainers.strategies.base import MakeOptimizer, Strategy
from trainers.strategies.elementwise import check_shardable
from trainers.strategies.flat_vector import FlatVector
from trainers.strategies.gradient_norm import clip_parts, norm_over_ranks
from trainers.strategies.sharded_optimizer import ShardedOptimizer, ShardedWeights
from trainers.strategies.sharding_guard import Guard, ShardingError


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
        if differs := difference(self.module, self.group, buffers=False):
            raise ShardingError(
                f"{differs}: with {self.name} only the optimizer that model.optimizer(...) gives may step the "
                f"parameters, as a rank has the mean gradients of its share only"
            )

    def before_stepping(self) -> None:
        """Raise ShardingError unless the gradients of the shares are there and nothing else is."""
        raise NotImplementedError

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """As for every strategy. Raises ValueError if what `make` makes cannot step shares of the parameters."""
        shares = [weights.share for weights in self._weights]
        check_shardable(make, self.parameters, shares, self.name)
        self._optimizer = ShardedOptimizer(make(shares), self._weights, self.before_stepping, self.name)
        return self._optimizer

    def saved_like(self) -> Sequence[torch.Tensor]:
        return [torch.empty(w.num_elements, dtype=w.share.dtype, device="meta") for w in self._weights]

    def gradient_norm(self) -> torch.Tensor:
        return norm_over_ranks(self.vectors(), self.group)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        norm = self.gradient_norm()
        clip_parts(self.vectors(), norm, max_norm)
        return norm

    @property
    def gather_s(self) -> float:  # type: ignore[override]
        return self._optimizer.gather_s if self._optimizer else 0.0

    def vectors(self) -> list[torch.Tensor]:
        return [weights.share_gradient for weights in self._weights]
