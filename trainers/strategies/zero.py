"""ZeRO stages 1 and 2: each rank steps a share of the parameters; in stage 2 it keeps that share of the gradients."""

import torch
import torch.distributed as dist
from torch import nn

from trainers.strategies.bucketed import InBuckets
from trainers.strategies.flat_vector import by_dtype
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
            weights.reduce()
            weights.finish()

    def held_gradients(self) -> list[torch.Tensor]:
        return [weights.gradients.vector for weights in self.weights if weights.gradients]


class Zero2(InBuckets, ShardedVectors):
    """A reduce-scatter for each bucket while the backward pass goes on; the bucket's gradients are freed at once.

    Within `no_sync` a rank holds all of its gradients. The optimizer's state has one vector for each bucket.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 5.2.
    """

    name = "zero2"
    max_under_way = 2  # each has a vector of its own until it has arrived

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, bucket_cap_mb: float | None = None) -> None:
        super().__init__(model, group)
        self.shard([ShardedWeights(bucket, group) for bucket in self.fill(bucket_cap_mb)])

    def send(self, number: int, async_op: bool) -> dist.Work | None:
        return self.weights[number].reduce(async_op)

    def finish(self, number: int) -> None:
        self.weights[number].finish()
