"""Our ring all-reduce over the flattened gradients, all in one go."""

import torch
import torch.distributed as dist
from torch import nn

import collectives
from trainers.strategies.base import Strategy
from trainers.strategies.flat_vector import flat_gradients


class Ring(Strategy):
    """One large message in place of many small ones, executed from the very schedule it is predicted with."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._vectors = flat_gradients(self.parameters)

    def synchronise(self) -> None:
        for gradients in self._vectors:
            collectives.all_reduce(gradients.pack(), dist.ReduceOp.AVG, self.group)
            gradients.unpack()

    def vectors(self) -> list[torch.Tensor]:
        return [gradients.vector for gradients in self._vectors]
