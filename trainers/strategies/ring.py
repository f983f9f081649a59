"""Our ring all-reduce over the flattened gradients, all in one go."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn

import collectives
from ringsim.algorithms import ring_all_reduce
from trainers.predictions.prediction import Call, Traffic
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

    def traffic(self, leads_s: Sequence[float]) -> Traffic:  # noqa: ARG002  nothing is overlapped
        schedule = ring_all_reduce(self.group.size())
        vectors = [gradients.vector for gradients in self._vectors]
        calls = [Call(schedule, v.nbytes, v.element_size()) for v in vectors]
        return Traffic(calls, local_bytes=2 * sum(v.nbytes for v in vectors))  # pack, divide
