"""One `dist.all_reduce` of all gradients, which lie one after the other in one vector."""

import torch
import torch.distributed as dist
from torch import nn

from trainers.strategies.base import Strategy
from trainers.strategies.flat_vector import flat_gradients


class Flat(Strategy):
    """One large message in place of many small ones; but none leaves before the last gradient is there."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._vectors = flat_gradients(self.parameters)

    def synchronise(self) -> None:
        for gradients in self._vectors:
            dist.all_reduce(gradients.pack(), group=self.group)
            gradients.vector /= self.group.size()
            gradients.unpack()

    def vectors(self) -> list[torch.Tensor]:
        return [gradients.vector for gradients in self._vectors]
