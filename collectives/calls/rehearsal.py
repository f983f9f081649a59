"""`Rehearsal`: one of our collectives on a group that sends nothing, recorded with the work that its rank does itself.

The results are those that would come if all ranks held what this one holds.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from collectives.calls.reduction import Reduction
from collectives.runtime import Fingerprint, RecordedGroup, Work, is_lent, recorded_group
from ringsim.schedule import Collective
from ringsim.traces import Call

Op = ReduceOp.RedOpType | ReduceOp


class Rehearsal:
    """One call: what would be sent is made up in `execute`, whose time does not count; all else is done."""

    def __init__(self, recorded: RecordedGroup, group: dist.ProcessGroup) -> None:
        self._recorded = recorded
        self._clock = recorded.recorder.clock
        self._num_ranks, self._rank = group.size(), group.rank()
        self._seconds = 0.0  # in `execute`
        self._size_bytes, self._dtype, self._is_lent = 0, torch.uint8, False

    def execute(
        self,
        collective: Collective,
        whole: torch.Tensor,
        reduction: Reduction | None,
        wire: torch.dtype | None,
        source: torch.Tensor | None,
        share: torch.Tensor | None,
        splits: tuple[int, ...] | None,
    ) -> None:
        """Do to `whole` what the schedule would; the arguments are those of `CollectiveCall.execute`."""
        began_s = self._clock()
        self._dtype = wire or whole.dtype
        self._size_bytes = self._num_elements(collective, whole, source) * self._dtype.itemsize
        self._is_lent = is_lent(whole if source is None else source) and self._dtype == whole.dtype
        whole = whole.view(-1)
        self._make_up(collective, whole, reduction, whole if source is None else source.view(-1), share, splits)
        self._seconds += self._clock() - began_s

    def _num_elements(self, collective: Collective, whole: torch.Tensor, source: torch.Tensor | None) -> int:
        """Return the elements of the whole, or of what a rank gives in an all_to_all."""
        if source is None or collective.is_whole:
            return whole.numel()
        per_rank = whole if collective is Collective.SCATTER else source
        return per_rank.numel() * (1 if collective is Collective.ALL_TO_ALL else self._num_ranks)

    def _make_up(
        self,
        collective: Collective,
        whole: torch.Tensor,
        reduction: Reduction | None,
        given: torch.Tensor,
        share: torch.Tensor | None,
        splits: tuple[int, ...] | None,
    ) -> None:
        """Leave in `whole`, or in `share`, what would come if all ranks gave `given`, both of one dimension."""
        if not collective.is_whole:
            is_cut = collective is not Collective.GATHER and given.numel()
            fill_cyclically(whole, self._share(given, splits and splits[: self._num_ranks]) if is_cut else given)
        elif collective is Collective.ALL_GATHER:
            own = self._share(whole, splits).clone()
            for part in whole.split(splits or own.numel()) if whole.numel() else ():
                fill_cyclically(part, own)
        elif collective is Collective.REDUCE_SCATTER:
            own = self._share(whole, splits) if share is None else share
            own.copy_(self._reduced(self._share(given, splits).view(own.shape), reduction))
        elif collective is not Collective.BROADCAST:
            whole.copy_(self._reduced(given, reduction))
        elif given is not whole:
            whole.copy_(given)

    def _share(self, tensor: torch.Tensor, splits: tuple[int, ...] | None) -> torch.Tensor:
        """Return this rank's share of `tensor`, which has one dimension."""
        return (tensor.split(splits) if splits else tensor.view(self._num_ranks, -1))[self._rank]

    def _reduced(self, tensor: torch.Tensor, reduction: Reduction | None) -> torch.Tensor:
        """Return what the schedule leaves, which `Reduction` divides, before or after, if it is to be a mean."""
        if reduction is None:
            return tensor
        op = ReduceOp.SUM if reduction.name == ReduceOp.AVG.name else getattr(ReduceOp, reduction.name)
        return reduced(tensor, op, self._num_ranks)

    def perform(
        self,
        work: Callable[[], None],
        fingerprint: Fingerprint,
        result: list[torch.Tensor],
        async_op: bool,
    ) -> Work | None:
        """Do `work`, which calls `execute`, and record the call."""
        with self._recorded.recorder.stopped():
            began_s = self._clock()
            work()
            local_s = max(self._clock() - began_s - self._seconds, 0.0)
            call = Call(
                collective=fingerprint.name,
                size_bytes=self._size_bytes,
                dtype=name_of(self._dtype),
                group=self._recorded.index,
                is_async=async_op,
                algorithm=fingerprint.algorithm,
                peer=-1 if fingerprint.root is None else fingerprint.root,
                local_s=local_s,
                is_lent=self._is_lent,
            )
            recorded_work = self._recorded.recorder.call(call, result)
        return recorded_work if async_op else None


def rehearsal_of(group: dist.ProcessGroup) -> Rehearsal | None:
    """Return a rehearsal for the next call of `group`; None if the group really communicates."""
    recorded = recorded_group(group)
    return None if recorded is None else Rehearsal(recorded, group)


def reduced(tensor: torch.Tensor, op: Op, num_ranks: int) -> torch.Tensor:
    """Return what `num_ranks` tensors like this one are reduced to."""
    if op == ReduceOp.SUM:
        return tensor * num_ranks
    if op == ReduceOp.PRODUCT:
        return tensor**num_ranks
    if op == ReduceOp.BXOR and num_ranks % 2 == 0:
        return torch.zeros_like(tensor)
    return tensor  # the mean, the smallest, the largest, all bits, any bits


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype without the module."""
    return str(dtype).removeprefix("torch.")


def fill_cyclically(output: torch.Tensor, source: torch.Tensor) -> None:
    """Fill `output` with elements of `source`, again from the beginning where these are fewer."""
    flat = source.reshape(-1)
    if flat.numel() and output.numel():
        repeats = -(-output.numel() // flat.numel())
        output.copy_(flat.repeat(repeats)[: output.numel()].view(output.shape))
