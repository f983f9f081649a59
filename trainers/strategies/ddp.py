"""torch's DistributedDataParallel, and its buckets on our ring: by a comm hook, or by our backend under all of it."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from ringsim.algorithms import binomial_tree_broadcast, ring_all_reduce
from ringsim.native import BACKENDS
from ringsim.training_step import BucketCaps, fill_buckets
from trainers.predictions.prediction import Call, Traffic, gloo_all_reduce
from trainers.strategies.base import Strategy
from trainers.strategies.flat_vector import flat_gradients
from trainers.strategies.parameters import described


class Ddp(Strategy):
    """The yardstick: buckets of gradients, all-reduced while the backward pass goes on.

    bucket_cap_mb: DDP's own option, in MiB; None: its default.
    """

    module: DistributedDataParallel
    num_workers = BACKENDS["gloo"].num_workers

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, bucket_cap_mb: float | None = None) -> None:
        super().__init__(model, group)
        self._caps = BucketCaps.from_mb(bucket_cap_mb)
        self.module = DistributedDataParallel(model, process_group=group, bucket_cap_mb=bucket_cap_mb)
        self._vectors = flat_gradients(self.parameters)

    def finish(self) -> None:
        """DDP has done it already."""

    def synchronise(self) -> None:
        # DDP can only do it in a backward pass.
        for gradients in self._vectors:
            collectives.all_reduce(gradients.pack(), dist.ReduceOp.AVG, self.group)
            gradients.unpack()

    def hold(self, held: bool) -> None:
        self.module.require_backward_grad_sync = not held  # what DDP's own no_sync does

    def traffic(self, leads_s: Sequence[float]) -> Traffic:
        last_s = max(leads_s, default=0.0)
        parameters = described(self.parameters, [last_s - lead_s for lead_s in leads_s])
        # From the second step on, buckets follow the order in which gradients become ready.
        order = sorted(range(len(parameters)), key=lambda index: parameters[index].ready_s)
        calls = []
        for bucket in fill_buckets(order, parameters, self._caps):
            num_elements = sum(parameters[index].elements for index in bucket)
            lead_s = min(leads_s[index] for index in bucket)
            calls.append(self.call(num_elements, self.parameters[bucket[0]].dtype, lead_s))
        local_bytes = 2 * sum(p.nbytes for p in self.parameters)  # into the buckets and back
        return Traffic(calls, local_bytes, self.num_workers, self._broadcasts())

    def _broadcasts(self) -> list[Call]:
        """Of the buffers, before each forward pass, those of a dtype together."""
        sizes: dict[int, int] = {}
        for buffer in self.module.module.buffers():
            sizes[buffer.element_size()] = sizes.get(buffer.element_size(), 0) + buffer.nbytes
        schedule = binomial_tree_broadcast(self.group.size())
        return [Call(schedule, size_bytes, each, is_native=True) for each, size_bytes in sizes.items()]

    def call(self, num_elements: int, dtype: torch.dtype, lead_s: float) -> Call:
        """The collective of a bucket."""
        return gloo_all_reduce(self.group.size(), num_elements * dtype.itemsize, dtype.itemsize, lead_s)


class DdpRing(Ddp):
    """DDP whose communication hook hands each bucket to our ring. wire: the dtype that travels."""

    num_workers = BACKENDS["ring"].num_workers

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        bucket_cap_mb: float | None = None,
        wire: torch.dtype | None = None,
    ) -> None:
        super().__init__(model, group, bucket_cap_mb)
        self._wire = wire
        self.module.register_comm_hook(collectives.HookState(group, wire=wire), collectives.ddp_comm_hook)

    def call(self, num_elements: int, dtype: torch.dtype, lead_s: float) -> Call:
        element_bytes = (self._wire or dtype).itemsize
        return Call(ring_all_reduce(self.group.size()), num_elements * element_bytes, element_bytes, lead_s)


class DdpOnRing(Ddp):
    """DDP just as it is, on a process group of our backend "ring" over the same ranks.

    Of a group that is not of that backend all ranks must have made equally many groups before: torch names the new one,
    over which they find each other, after that number.
    """

    num_workers = BACKENDS["ring"].num_workers

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, bucket_cap_mb: float | None = None) -> None:
        super().__init__(model, _on_ring(group), bucket_cap_mb)

    def call(self, num_elements: int, dtype: torch.dtype, lead_s: float) -> Call:
        schedule = ring_all_reduce(self.group.size())
        return Call(schedule, num_elements * dtype.itemsize, dtype.itemsize, lead_s)


def _on_ring(group: dist.ProcessGroup) -> dist.ProcessGroup:
    if dist.get_backend(group) == "ring":
        return group
    timeout = group._get_backend(torch.device("cpu")).options._timeout
    ranks = dist.get_process_group_ranks(group)
    ring = dist.new_group(ranks, timeout=timeout, backend="ring", use_local_synchronization=True)
    assert isinstance(ring, dist.ProcessGroup)
    return ring
