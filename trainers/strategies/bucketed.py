"""Buckets of gradients, which our ring all-reduces during the backward pass."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

import collectives
from ringsim.training_step import BucketCaps, fill_buckets
from trainers.strategies.base import Strategy
from trainers.strategies.flat_vector import FlatGradients, described


class InBuckets(Strategy):
    """A strategy that sends buckets of gradients during the backward pass.

    All ranks send the buckets in the reverse order of the layers, whichever is full first.

    max_under_way: maximum number of buckets in flight; None: unlimited.
    """

    max_under_way: int | None = None

    def fill(self, bucket_cap_mb: float | None) -> list[list[nn.Parameter]]:
        """Return the parameters of each bucket.

        bucket_cap_mb: size in MiB that closes a bucket; None: 1 for the first, 25 for the others, as in DDP.
        """
        order = range(len(self.parameters) - 1, -1, -1)
        self._buckets: Sequence[Sequence[int]]
        self._buckets = fill_buckets(order, described(self.parameters), BucketCaps.from_mb(bucket_cap_mb))
        self._number_of = {index: number for number, bucket in enumerate(self._buckets) for index in bucket}
        self._under_way: list[tuple[int, dist.Work | None]] = []
        self.on_forward()
        return [[self.parameters[index] for index in bucket] for bucket in self._buckets]

    def send(self, number: int, async_op: bool) -> dist.Work | None:
        raise NotImplementedError

    def finish(self, number: int) -> None:
        raise NotImplementedError

    def on_forward(self) -> None:
        for _, work in self._under_way:  # left by a pass that failed, in memory that is now used again
            if work is not None:
                work.wait()
        self._under_way.clear()
        self._missing = [set(bucket) for bucket in self._buckets]
        self._num_sent = 0

    def on_grad(self, index: int) -> None:
        self._missing[self._number_of[index]].discard(index)
        # The last bucket is full when the backward pass ends: it is sent then, without the help of another thread.
        while self._num_sent < len(self._buckets) - 1 and not self._missing[self._num_sent]:
            self._send_next(async_op=True)

    def on_backward_end(self) -> None:
        while self._num_sent < len(self._buckets):
            self._send_next(async_op=False)  # after those that are under way
        while self._under_way:
            self._wait_for_first()
        self.on_forward()

    def synchronise(self) -> None:
        self.on_forward()
        self.on_backward_end()

    def _send_next(self, async_op: bool) -> None:
        if len(self._under_way) == self.max_under_way:
            self._wait_for_first()
        self._under_way.append((self._num_sent, self.send(self._num_sent, async_op)))
        self._num_sent += 1

    def _wait_for_first(self) -> None:
        number, work = self._under_way.pop(0)
        if work is not None:
            work.wait()
        self.finish(number)


class Bucketed(InBuckets):
    """The principle of torch's DistributedDataParallel.

    wire: dtype on the wire; sums keep the gradients' dtype.
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
        self._gradients = [FlatGradients(bucket, group=group) for bucket in self.fill(bucket_cap_mb)]

    def send(self, number: int, async_op: bool) -> dist.Work | None:
        vector = self._gradients[number].pack()
        return collectives.all_reduce(vector, dist.ReduceOp.AVG, self.group, async_op, wire=self._wire)

    def finish(self, number: int) -> None:
        self._gradients[number].unpack()
