"""torch's DistributedDataParallel, also on our ring by communication hook or by backend."""

import uuid
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from collectives.runtime import gather_objects
from ringsim.training_step import BucketCaps
from trainers.strategies.base import MakeOptimizer, Strategy
from trainers.strategies.plain import Ring


class Ddp(Strategy):
    """The reference: torch's DDP, which all-reduces buckets during the backward pass.

    bucket_cap_mb: DDP's option, in MiB; None: DDP's default.
    """

    wrap: type[DistributedDataParallel] = DistributedDataParallel
    module: DistributedDataParallel

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, bucket_cap_mb: float | None = None) -> None:
        super().__init__(model, group)
        BucketCaps.from_mb(bucket_cap_mb)  # raises ValueError for what DDP would take without a word
        self.module = self.wrap(model, process_group=group, bucket_cap_mb=bucket_cap_mb)
        self._ring = Ring(model, group)

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        optimizer = super().optimizer(make)
        # A step must not use gradients that are not reduced; the step may be the last, or follow a pass that failed.
        optimizer.register_step_pre_hook(lambda *_: self._rebuild_buckets())
        return optimizer

    def _rebuild_buckets(self) -> None:
        """Raise RuntimeError, like DDP's next forward pass, if a bucket still waits for a gradient."""
        self.module.reducer._rebuild_buckets()

    def on_forward(self) -> None:
        # DDP sends the buffers of rank 0 before the pass that follows one with gradients: a rank that evaluates alone
        # would wait for the others.
        self.module.require_forward_param_sync = torch.is_grad_enabled() and self.module.require_backward_grad_sync

    def on_backward_end(self) -> None:
        """Do nothing: DDP has synchronised already."""

    def synchronise(self) -> None:
        self._ring.synchronise()  # DDP can only do it in a backward pass

    def compile(self, compile_module: Callable[[nn.Module], Callable[..., object]]) -> None:
        # Not the whole of DDP, whose bookkeeping around the model's forward pass breaks the graph.
        self.module.module = compile_module(self.module.module)

    def set_sync(self, is_synced: bool) -> None:
        self.module.require_backward_grad_sync = is_synced  # what DDP's own no_sync does


class DdpInPlace(Ddp):
    """DDP with buckets in memory that our collectives can share."""

    wrap = collectives.DistributedDataParallel
    module: collectives.DistributedDataParallel

    def _rebuild_buckets(self) -> None:
        with self.module.allocating_buckets():
            super()._rebuild_buckets()


class DdpHook(DdpInPlace):
    """DDP with a communication hook that passes each bucket to our ring. wire: dtype on the wire."""

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        bucket_cap_mb: float | None = None,
        wire: torch.dtype | None = None,
    ) -> None:
        super().__init__(model, group, bucket_cap_mb)
        self.module.register_comm_hook(collectives.HookState(group, wire=wire), collectives.ddp_comm_hook)


def group_on_ring(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return the group, or a new group of its ranks if its backend is not ours; collective."""
    if dist.get_backend(group) == "ring":
        return group
    timeout = group._get_backend(torch.device("cpu")).options._timeout
    # torch names a group by its ranks and this rank's number of groups, and stores addresses under that name. Ranks
    # with different numbers would wait for one another, and find the addresses of destroyed groups.
    name = gather_objects(uuid.uuid4().hex, group, "agreeing on the name of a group failed")[0]
    module: Any = dist.distributed_c10d  # torch has no public function for it
    name_by_torch, module._process_group_name = module._process_group_name, lambda *_, **__: name
    try:
        ranks = dist.get_process_group_ranks(group)
        ring = dist.new_group(ranks, timeout=timeout, backend="ring", use_local_synchronization=True)
    finally:
        module._process_group_name = name_by_torch
    assert isinstance(ring, dist.ProcessGroup)
    return ring
