"""ZeRO stages 1 and 2: each rank steps a share of the parameters; in stage 2 it keeps that share of the gradients."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from ringsim.training_step import BucketCaps, fill_buckets
from trainers.strategies.flat_vector import by_dtype, described
from trainers.strategies.sharded import ShardedVectors, ShardedWeights


class Zero1(ShardedVectors):
    """Reduce-scatter the gradients, step the own share, all-gather the parameters: the bytes of an all-reduce.

    The model's parameters come to lie in one vector for each dtype, and so do the gradients, whose memory is kept.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 5.1.
    """

    name = "zero1"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self.shard([ShardedWeights(some, group) for some in by_dtype(self.parameters)])
        for weights in self.weights:
            weights.gradients = weights.vector(lends=True)

    def synchronise(self) -> None:
        for weights in self.weights:
            weights.reduce()()

    def held_gradients(self) -> list[torch.Tensor]:
        return [weights.gradients.vector for weights in self.weights if weights.gradients]


MAX_UNDER_WAY = 2  # buckets that travel at once: each has a vector of its own until it has arrived


class Zero2(ShardedVectors):
    """A reduce-scatter for each bucket while the backward pass goes on; the bucket's gradients are freed at once.

    Within `no_sync` a rank holds all of its gradients.

    bucket_cap_mb: at how many MiB a bucket is closed; None: at 1 the first, at 25 the others, as DDP does. The
    optimizer's state has one vector for each bucket.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 5.2.
    """

    name = "zero2"

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, bucket_cap_mb: float | None = None) -> None:
        super().__init__(model, group)
        order = range(len(self.parameters) - 1, -1, -1)
        self._buckets = fill_buckets(order, described(self.parameters), BucketCaps.from_mb(bucket_cap_mb))
        self.shard([ShardedWeights([self.parameters[i] for i in bucket], group) for bucket in self._buckets])
        self.on_forward()

    def on_forward(self) -> None:
        self._missing = [set(bucket) for bucket in self._buckets]
        self._num_sent = 0
        self._under_way: list[Callable[[], None]] = []

    def on_grad(self, index: int) -> None:
        for missing in self._missing:
            missing.discard(index)
        # All ranks send the buckets in this order, and the last one when the backward pass ends, as `bucketed` does.
        while self._num_sent < len(self.weights) - 1 and not self._missing[self._num_sent]:
            self._send(async_op=True)

    def _send(self, async_op: bool) -> None:
        """Reduce-scatter the next bucket, and free the gradients in it."""
        if len(self._under_way) == MAX_UNDER_WAY:
            self._under_way.pop(0)()
        self._under_way.append(self.weights[self._num_sent].reduce(async_op))
        self._num_sent += 1

    def on_backward_end(self) -> None:
        while self._num_sent < len(self.weights):
            self._send(async_op=False)  # after those that are under way
        for finish in self._under_way:
            finish()
        self.on_forward()

    def synchronise(self) -> None:
        self.on_forward()
        self.on_backward_end()
