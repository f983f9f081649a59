"""ZeRO stage 2: as stage 1, and each rank keeps the mean gradients of its share only."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import collectives
from collectives import Work
from ringsim.training_step import BucketCaps, fill_buckets
from trainers.strategies.flat_vector import FlatVector
from trainers.strategies.parameters import described
from trainers.strategies.sharded import Sharded
from trainers.strategies.sharded_optimizer import ShardedWeights
from trainers.strategies.sharding_guard import ShardingError

MAX_UNDER_WAY = 2  # buckets that travel at once: each has a vector of its own until it has arrived


class _Reduction(NamedTuple):
    """A reduce-scatter. part: where this rank's share of the mean arrives."""

    weights: ShardedWeights
    part: torch.Tensor
    work: Work | None

    def finish(self) -> None:
        """Wait for it, and add it to what earlier backward passes have left since `zero_grad`."""
        if self.work is not None:
            self.work.wait()
        if self.weights.share.grad is None:
            self.weights.share_gradient.copy_(self.part)
            self.weights.share.grad = self.weights.share_gradient
        else:
            self.weights.share_gradient.add_(self.part)


class Zero2(Sharded):
    """A reduce-scatter for each bucket while the backward pass goes on; the bucket's gradients are freed at once.

    After the backward pass every parameter's `grad` is None, and a rank holds the mean gradients of its share.
    `optimizer.zero_grad()` or `model.zero_grad()` forgets these. Within `no_sync` a rank holds all of its own.

    bucket_cap_mb: at how many MiB a bucket is closed; None: at 1 the first, at 25 the others, as DDP does. The
    optimizer's state has one vector for each bucket.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 5.2.
    """

    name = "zero2"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, bucket_cap_mb: float | None = None) -> None:
        super().__init__(model, group)
        order = range(len(self.parameters) - 1, -1, -1)
        buckets = fill_buckets(order, described(self.parameters), BucketCaps.from_mb(bucket_cap_mb))
        self._shard([[self.parameters[index] for index in bucket] for bucket in buckets])
        self._bucket_of = {index: number for number, bucket in enumerate(buckets) for index in bucket}
        self._members = [set(bucket) for bucket in buckets]
        self._guard = self._guarded([])
        self._is_stepped = False  # with the gradients that the shares have now
        self.begin()

    def begin(self) -> None:
        self._missing = [set(members) for members in self._members]
        self._num_sent = 0
        self._under_way: list[_Reduction] = []

    def ready(self, index: int) -> None:
        self._missing[self._bucket_of[index]].discard(index)
        # All ranks send the buckets in this order, and the last one when the backward pass ends, as `bucketed` does.
        while self._num_sent < len(self._weights) - 1 and not self._missing[self._num_sent]:
            self._send(async_op=True)

    def _send(self, async_op: bool) -> None:
        """Reduce-scatter the next bucket, and free the gradients in it."""
        self._refuse_stepped()
        if len(self._under_way) == MAX_UNDER_WAY:
            self._under_way.pop(0).finish()
        weights = self._weights[self._num_sent]
        self._num_sent += 1
        vector, part = _packed(weights, self.group.size()), torch.empty_like(weights.share_gradient)
        work = collectives.reduce_scatter_tensor(part, vector, dist.ReduceOp.AVG, self.group, async_op)
        self._under_way.append(_Reduction(weights, part, work))

    def finish(self) -> None:
        while self._num_sent < len(self._weights):
            self._send(async_op=False)  # after those that are under way
        for reduction in self._under_way:
            reduction.finish()
        self.begin()
        self._guard.before_synchronising()  # as all has arrived: it is collective
        self._guard.synchronised()

    def synchronise(self) -> None:
        self.begin()
        self.finish()

    def _refuse_stepped(self) -> None:
        """Gradients of two steps would be added up."""
        if self._is_stepped and any(weights.share.grad is not None for weights in self._weights):
            raise ShardingError(
                "the gradients of the last step are still there: with zero2 they are not those of the parameters; call "
                "optimizer.zero_grad() or zero_grad() of the DataParallel before the next backward pass"
            )
        self._is_stepped = False

    def zero_grad(self) -> None:
        for weights in self._weights:
            weights.share.grad = None

    def before_stepping(self) -> None:
        if any(parameter.grad is not None for parameter in self.parameters):
            raise ShardingError(
                "there are gradients that have not been synchronised: take the last backward pass before a step "
                "outside of no_sync(), or call model.sync_gradients()"
            )
        self._guard.before_stepping()
        self._is_stepped = True


@torch.no_grad()
def _packed(weights: ShardedWeights, num_ranks: int) -> torch.Tensor:
    """The gradients in one new vector, zeros where there is none; the parameters have none afterwards."""
    flat = FlatVector(weights.parameters, multiple_of=num_ranks)
    for parameter, view in zip(weights.parameters, flat.views, strict=True):
        if parameter.grad is not None:
            view.copy_(parameter.grad)
            parameter.grad = None
    return flat.vector
