"""Reduce-scatter, then all-gather, over the flattened and padded gradients."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn

from ringsim.native import native_schedule
from ringsim.schedule import Collective
from trainers.predictions.prediction import Call, Traffic
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

    def traffic(self, leads_s: Sequence[float]) -> Traffic:  # noqa: ARG002  nothing is overlapped
        num_ranks, calls, local_bytes = self.group.size(), [], 0
        for vector in (gradients.vector for gradients in self._vectors):
            # Gloo has no reduce_scatter of its own: torch makes a copy and all-reduces it, twice the bytes needed.
            for half in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
                schedule = native_schedule(half, num_ranks, vector.nbytes)
                calls.append(Call(schedule, vector.nbytes, vector.element_size(), is_native=True))
            local_bytes += 2 * vector.nbytes + 2 * vector.nbytes // num_ranks  # pack, copy; take the share, divide
        return Traffic(calls, local_bytes)
