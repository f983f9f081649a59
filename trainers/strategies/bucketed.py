"""Buckets of gradients, each all-reduced by our ring as soon as it is full, while the backward pass goes on."""

import torch
import torch.distributed as dist
from torch import nn

import collectives
from ringsim.training_step import BucketCaps, fill_buckets
from trainers.strategies.base import Strategy
from trainers.strategies.flat_vector import FlatGradients, described


class Bucketed(Strategy):
    """The principle of torch's DistributedDataParallel, in fifty lines.

    Gradients come about in the reverse of the order of the layers, so that is how buckets are filled. All ranks must
    launch them in the same order, whichever is full first.

    bucket_cap_mb: at how many MiB a bucket is closed; None: at 1 the first, at 25 the others, as DDP does.
    wire: the dtype that travels, such as torch.bfloat16; sums stay as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        bucket_cap_mb: float | None = None,
        wire: torch.dtype | None = None,
    ) -> None:
        super().__init__(model, group)
        self._wire = wire
        order = range(len(self.parameters) - 1, -1, -1)
        buckets = fill_buckets(order, described(self.parameters), BucketCaps.from_mb(bucket_cap_mb))
        self._buckets = [FlatGradients([self.parameters[index] for index in bucket], group=group) for bucket in buckets]
        self._place = {
            index: (number, place) for number, bucket in enumerate(buckets) for place, index in enumerate(bucket)
        }
        self._under_way: list[dist.Work] = []
        self.on_forward()

    def on_forward(self) -> None:
        self._wait()  # a pass that failed may have left all-reduces running in the buckets that are now refilled
        self._missing = [set(range(len(bucket.views))) for bucket in self._buckets]
        for bucket in self._buckets:
            bucket.begin()

    def _wait(self) -> None:
        for work in self._under_way:
            work.wait()
        self._under_way.clear()

    def on_grad(self, index: int) -> None:
        number, place = self._place[index]
        self._buckets[number].take(place)
        self._missing[number].discard(place)
        # The last bucket is full when the backward pass ends: it is sent then, without the help of another thread.
        while (first := len(self._under_way)) < len(self._buckets) - 1 and not self._missing[first]:
            work = self._all_reduce(self._buckets[first], async_op=True)
            assert work is not None
            self._under_way.append(work)

    def _all_reduce(self, bucket: FlatGradients, async_op: bool) -> dist.Work | None:
        return collectives.all_reduce(bucket.vector, dist.ReduceOp.AVG, self.group, async_op, wire=self._wire)

    def on_backward_end(self) -> None:
        for bucket, missing in list(zip(self._buckets, self._missing, strict=True))[len(self._under_way) :]:
            for place in missing:  # not used in this pass
                bucket.take(place)
            self._all_reduce(bucket, async_op=False)  # after those that are under way
        self._wait()
        for bucket in self._buckets:
            bucket.unpack()
        self.on_forward()

    def synchronise(self) -> None:
        self.on_forward()
        self.on_backward_end()
