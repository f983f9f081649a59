"""ZeRO stages 1 and 2: each rank steps a share of the parameters; in stage 2 it keeps that share of the gradients."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import collectives
from collectives import Work
from ringsim.training_step import BucketCaps, fill_buckets
from trainers.strategies.flat_vector import FlatVector, by_dtype, described, take_gradient
from trainers.strategies.sharded import ShardedGradients, ShardedVectors, ShardedWeights, moved_gradients


class Zero1(ShardedVectors):
    """Reduce-scatter the gradients, step the own share, all-gather the parameters: the bytes of an all-reduce.

    The model's parameters come to lie in one vector for each dtype. After a synchronisation a parameter's own `grad` is
    still what this rank has found; whoever steps with it is told.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 5.1.
    """

    name = "zero1"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        weights = self._shard(by_dtype(self.parameters))
        self._gradients = [FlatVector(w.parameters, multiple_of=group.size(), group=group) for w in weights]
        self._guard = self._guarded(self._gradients)

    def synchronise(self) -> None:
        self._guard.before_synchronising()
        for weights, gradients in zip(self.weights, self._gradients, strict=True):
            for parameter, view in zip(weights.parameters, gradients.views, strict=True):
                take_gradient(parameter, view)
            collectives.reduce_scatter_tensor(weights.share_gradient, gradients.vector, dist.ReduceOp.AVG, self.group)
            weights.show_gradient()
        self._guard.synchronised()

    def before_stepping(self) -> None:
        self._guard.before_stepping()


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
        self.weights.add_gradient(self.part)


class Zero2(ShardedGradients):
    """A reduce-scatter for each bucket while the backward pass goes on; the bucket's gradients are freed at once.

    After the backward pass no parameter has a gradient, and a rank holds the mean gradients of its share.
    `optimizer.zero_grad()` or `model.zero_grad()` forgets these. Within `no_sync` a rank holds all of its gradients.

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
        self.on_forward()

    def on_forward(self) -> None:
        self._missing = [set(members) for members in self._members]
        self._num_sent = 0
        self._under_way: list[_Reduction] = []

    def on_grad(self, index: int) -> None:
        self._missing[self._bucket_of[index]].discard(index)
        # All ranks send the buckets in this order, and the last one when the backward pass ends, as `bucketed` does.
        while self._num_sent < len(self.weights) - 1 and not self._missing[self._num_sent]:
            self._send(async_op=True)

    def _send(self, async_op: bool) -> None:
        """Reduce-scatter the next bucket, and free the gradients in it."""
        self.refuse_stepped()
        if len(self._under_way) == MAX_UNDER_WAY:
            self._under_way.pop(0).finish()
        weights = self.weights[self._num_sent]
        self._num_sent += 1
        vector, part = moved_gradients(weights, self.group.size()), torch.empty_like(weights.share_gradient)
        work = collectives.reduce_scatter_tensor(part, vector, dist.ReduceOp.AVG, self.group, async_op)
        self._under_way.append(_Reduction(weights, part, work))

    def on_backward_end(self) -> None:
        while self._num_sent < len(self.weights):
            self._send(async_op=False)  # after those that are under way
        for reduction in self._under_way:
            reduction.finish()
        self.on_forward()
        self._guard.before_synchronising()  # as all has arrived: it is collective
        self._guard.synchronised()

    def before_stepping(self) -> None:
        super().before_stepping()
        self._guard.before_stepping()
