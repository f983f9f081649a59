"""Our ring all-reduce over the flattened gradients, all in one go."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn

import collectives
from ringsim.algorithms import ring_all_reduce
from trainers.flat import FlatGradients
from trainers.prediction import Call, Traffic


class Ring:
    """One large message in place of many small ones, executed from the very schedule it is predicted with."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.module = model
        self._group = group
        self._flat = FlatGradients(model)

    def synchronise(self) -> None:
        collectives.all_reduce(self._flat.pack(), dist.ReduceOp.AVG, self._group)
        self._flat.unpack()

    def traffic(self, leads_s: Sequence[float]) -> Traffic:  # noqa: ARG002  nothing is overlapped
        vector = self._flat.vector
        call = Call(ring_all_reduce(self._group.size()), vector.nbytes, vector.element_size())
        return Traffic([call], local_bytes=3 * vector.nbytes)  # pack, divide, unpack
