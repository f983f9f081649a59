"""Reduce-scatter, then all-gather, over the flattened and padded gradients."""

import torch
import torch.distributed as dist
from torch import nn

from trainers.strategies.base import Strategy
from trainers.strategies.flat_vector import flat_gradients

# Their names from torch 2.13 on, where the older ones warn.
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class ReduceScatterAllGather(Strategy):
    """The two halves of an all-reduce as calls of their own; between them a rank could step its own share (`zero1`)."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._vectors = flat_gradients(self.parameters, multiple_of=group.size())
        self._shares = [gradients.vector.chunk(group.size())[0].clone() for gradients in self._vectors]

    def synchronise(self) -> None:
        for gradients, share in zip(self._vectors, self._shares, strict=True):
            REDUCE_SCATTER(share, gradients.pack(), group=self.group)
            share.div_(self.group.size())
            ALL_GATHER(gradients.vector, share, group=self.group)
            gradients.unpack()

    def vectors(self) -> list[torch.Tensor]:
        return [*(gradients.vector for gradients in self._vectors), *self._shares]
