"""torch's DistributedDataParallel: buckets of gradients, all-reduced while the backward pass goes on."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ringsim.ddp.backend import BACKENDS
from ringsim.ddp.buckets import BucketCaps, fill_buckets
from ringsim.ddp.profile import Parameter
from trainers.prediction import Traffic, gloo_all_reduce


class Ddp:
    """The yardstick; its synchronisation happens inside the backward pass."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.module = DistributedDataParallel(model, process_group=group)
        self._group = group
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    def synchronise(self) -> None:
        """Nothing is left to do."""

    def traffic(self, leads_s: Sequence[float]) -> Traffic:
        last_s = max(leads_s, default=0.0)
        parameters = [
            Parameter(str(index), p.numel(), last_s - lead_s, str(p.dtype).removeprefix("torch."), str(p.device))
            for index, (p, lead_s) in enumerate(zip(self._parameters, leads_s, strict=True))
        ]
        # From the second step on, buckets follow the order in which gradients become ready.
        order = sorted(range(len(parameters)), key=lambda index: parameters[index].ready_s)
        calls = []
        for bucket in fill_buckets(order, parameters, BucketCaps()):
            size_bytes = sum(parameters[index].size_bytes for index in bucket)
            element_bytes = self._parameters[bucket[0]].element_size()
            lead_s = min(leads_s[index] for index in bucket)
            calls.append(gloo_all_reduce(self._group.size(), size_bytes, element_bytes, lead_s))
        local_bytes = 2 * sum(p.nbytes for p in self._parameters)  # into the buckets and back
        return Traffic(calls, local_bytes, BACKENDS["gloo"].num_workers)
