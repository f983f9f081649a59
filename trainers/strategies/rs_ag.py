"""Reduce-scatter, then all-gather, over the flattened and padded gradients."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from ringsim.algorithms import gloo_ring_all_gather
from trainers.flat import FlatGradients
from trainers.prediction import Call, Traffic, gloo_all_reduce


class ReduceScatterAllGather:
    """The two halves of an all-reduce as calls of their own; between them a rank could step its own share."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.module = model
        self._group = group
        self._flat = FlatGradients(model, multiple_of=group.size())
        self._shares = list(self._flat.vector.chunk(group.size()))
        self._own_share = torch.empty_like(self._shares[0])

    def synchronise(self) -> None:
        self._flat.pack()
        dist.reduce_scatter(self._own_share, self._shares, group=self._group)
        self._own_share /= self._group.size()
        dist.all_gather(self._shares, self._own_share, group=self._group)
        self._flat.unpack()

    def traffic(self, leads_s: Sequence[float]) -> Traffic:  # noqa: ARG002  nothing is overlapped
        num_ranks, share = self._group.size(), self._own_share
        # Gloo has no reduce_scatter of its own: torch all-reduces each of the n shares
        # (ProcessGroupGloo::reduce_scatter), twice the bytes that are needed.
        all_reduce = gloo_all_reduce(num_ranks, share.nbytes, share.element_size())
        all_gather = Call(gloo_ring_all_gather(num_ranks), self._flat.vector.nbytes, share.element_size())
        return Traffic([all_reduce] * num_ranks + [all_gather], local_bytes=2 * self._flat.vector.nbytes + share.nbytes)
