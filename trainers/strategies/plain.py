"""The plain strategies: no message, one per parameter, or one for all parameters."""

import torch
import torch.distributed as dist
from torch import nn

import collectives
from trainers.strategies.base import Strategy
from trainers.strategies.flat_vector import FlatGradients, flat_gradients


class NoSync(Strategy):
    """A baseline without communication: losses and parameters of the ranks diverge."""


class AllReduce(Strategy):
    """One all-reduce per parameter: simple but slow, as every small message pays the ring's latency.

    Ranks first exchange which gradients exist: a rank without one must send zeros, or the others hang.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._used = torch.ones(len(self.parameters))

    def synchronise(self) -> None:
        self._used.fill_(1)
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                self._used[index] = 0
        dist.all_reduce(self._used, group=self.group)
        for parameter, used in zip(self.parameters, self._used.tolist(), strict=True):
            if used:
                self._average(parameter)

    def _average(self, parameter: nn.Parameter) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad /= self.group.size()  # first, as DDP does: in float16 the mean may fit where the sum does not
        dist.all_reduce(parameter.grad, group=self.group)


class Flat(Strategy):
    """One large message instead of many small ones, sent when the last gradient is ready."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._vectors = self._new_vectors()

    def _new_vectors(self) -> list[FlatGradients]:
        return flat_gradients(self.parameters)

    def synchronise(self) -> None:
        for gradients in self._vectors:
            self._average(gradients.pack())
            gradients.unpack()

    def _average(self, vector: torch.Tensor) -> None:
        vector /= self.group.size()
        dist.all_reduce(vector, group=self.group)


class Ring(Flat):
    """`Flat` on our ring: executes the schedule that also predicts it, on gradients in place."""

    def _new_vectors(self) -> list[FlatGradients]:
        return flat_gradients(self.parameters, group=self.group)

    def _average(self, vector: torch.Tensor) -> None:
        collectives.all_reduce(vector, dist.ReduceOp.AVG, self.group)


# Their names from torch 2.13 on, where the older ones warn.
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class ReduceScatterAllGather(Strategy):
    """The two halves of an all-reduce as separate calls; `zero1` steps its own share between them."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._vectors = flat_gradients(self.parameters, multiple_of=group.size())
        self._shares = [gradients.vector.chunk(group.size())[0].clone() for gradients in self._vectors]

    def synchronise(self) -> None:
        for gradients, share in zip(self._vectors, self._shares, strict=True):
            REDUCE_SCATTER(share, gradients.pack().div_(self.group.size()), group=self.group)
            ALL_GATHER(gradients.vector, share, group=self.group)
            gradients.unpack()
