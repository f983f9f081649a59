"""torch's DistributedDataParallel: buckets of gradients, all-reduced while the backward pass goes on."""

from collections.abc import Iterable, Sequence

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainers.prediction import Traffic, gloo_all_reduce

FIRST_BUCKET_BYTES = 2**20  # torch's defaults: a small first bucket, so that sending can begin early
BUCKET_BYTES = 25 * 2**20


class Ddp:
    """The yardstick; its synchronisation happens inside the backward pass."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.module = DistributedDataParallel(model, process_group=group)
        self._group = group
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    def synchronise(self) -> None:
        """Nothing is left to do."""

    def traffic(self, leads_s: Sequence[float]) -> Traffic:
        # From the second step on, buckets follow the order in which gradients become ready.
        by_readiness = sorted(range(len(self._parameters)), key=lambda index: -leads_s[index])
        calls = []
        for bucket in buckets(by_readiness, [p.nbytes for p in self._parameters]):
            size_bytes = sum(self._parameters[index].nbytes for index in bucket)
            element_bytes = self._parameters[bucket[0]].element_size()
            lead_s = min(leads_s[index] for index in bucket)
            calls.append(gloo_all_reduce(self._group.size(), size_bytes, element_bytes, lead_s))
        return Traffic(calls, local_bytes=2 * sum(p.nbytes for p in self._parameters))  # into the buckets and back


def buckets(order: Iterable[int], sizes_bytes: Sequence[int]) -> list[list[int]]:
    """DDP's buckets: append a parameter, then close the bucket if it has reached its cap.

    order: parameter numbers as their gradients become ready; sizes_bytes: by parameter number.
    Source: compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp; one dtype and device.
    """
    result: list[list[int]] = [[]]
    filled = 0
    for index in order:
        if filled >= (FIRST_BUCKET_BYTES if len(result) == 1 else BUCKET_BYTES):
            result.append([])
            filled = 0
        result[-1].append(index)
        filled += sizes_bytes[index]
    return result
