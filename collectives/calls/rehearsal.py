"""`Rehearsal`: one of our collectives on a group that sends nothing, recorded with its rank's local work.

The results are correct if all ranks hold the same data.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from collectives.calls.reduction import Reduction
from collectives.calls.table import SCATTERING, own_share
from collectives.runtime import Fingerprint, RunOperands, Work
from ringsim.schedule import Collective
from ringsim.traces import TraceCall

Op = ReduceOp.RedOpType | ReduceOp


class CallRecorder(Protocol):
    """The interface between a call and its group's recorder (`collectives.recording.Recorder`)."""

    clock: Callable[[], float]

    def stopped(self) -> AbstractContextManager[None]:
        """Exclude the time of the block."""

    def call(self, call: TraceCall, result: list[torch.Tensor]) -> Work:
        """Record a call that already has its result."""

    def sendrecv(self, counterpart: TraceCall, distance: int, result: list[torch.Tensor]) -> Work | None:
        """Make a send or recv one call with its counterpart, if any."""


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """The recorder of a group, and its index in the trace."""

    recorder: CallRecorder
    index: int


_RECORDED: WeakKeyDictionary[dist.ProcessGroup, RecordedGroup] = WeakKeyDictionary()


def record_group(group: dist.ProcessGroup, recorded: RecordedGroup) -> None:
    """Record the calls of `group` from now on, and send nothing."""
    _RECORDED[group] = recorded


def recorded_group(group: dist.ProcessGroup) -> RecordedGroup | None:
    """Return the recorder of `group`; None if it communicates."""
    return _RECORDED.get(group)


def record_as_lent(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor`, from now on recorded as memory that ranks share, with all its views."""
    tensor.untyped_storage().is_lent = True  # type: ignore[attr-defined]
    return tensor


def is_lent(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is in memory of `record_as_lent`."""
    return getattr(tensor.untyped_storage(), "is_lent", False)


class Rehearsal:
    """One recorded call: `execute` makes up the transfers and is not timed; all other work is done and timed."""

    def __init__(self, recorded: RecordedGroup, group: dist.ProcessGroup, collective: Collective) -> None:
        self._recorded, self._collective = recorded, collective
        self._clock = recorded.recorder.clock
        self._num_ranks, self._rank = group.size(), group.rank()
        self._seconds = 0.0  # in `execute`
        self._size_bytes, self._dtype, self._is_lent = 0, torch.uint8, False

    def execute(self, operands: RunOperands, reduction: Reduction | None, size_bytes: int) -> None:
        """Write the result for ranks that all hold this rank's data.

        size_bytes: of all chunks, for the recording.
        """
        began_s, collective = self._clock(), self._collective
        whole, source, splits = operands.tensor.view(-1), operands.source, operands.splits
        self._dtype, self._size_bytes = operands.wire, size_bytes
        self._is_lent = is_lent(whole if source is None else source) and self._dtype == whole.dtype
        given, outputs = whole if source is None else source.view(-1), [whole]
        if collective is Collective.ALL_GATHER:
            given = own_share(whole, self._rank, self._num_ranks, splits).clone()
            outputs = list(whole.split(splits)) if splits else [whole]
        elif collective is Collective.REDUCE_SCATTER:
            share = operands.share
            outputs = [own_share(whole, self._rank, self._num_ranks, splits) if share is None else share]
        inputs = [given]
        if splits and collective in SCATTERING:
            inputs = list(given.split(splits[: self._num_ranks]))
        imitate(collective, outputs, inputs, self._op(reduction), self._rank, self._num_ranks)
        self._seconds += self._clock() - began_s

    def _op(self, reduction: Reduction | None) -> Op | None:
        if reduction is None:
            return None
        return ReduceOp.SUM if reduction.name == ReduceOp.AVG.name else getattr(ReduceOp, reduction.name)

    def perform(
        self, work: Callable[[], None], fingerprint: Fingerprint, result: list[torch.Tensor], async_op: bool
    ) -> Work | None:
        with self._recorded.recorder.stopped():
            began_s = self._clock()
            work()
            local_s = max(self._clock() - began_s - self._seconds, 0.0)
            root = -1 if fingerprint.root is None else fingerprint.root
            common = fingerprint.name, self._size_bytes, name_of(self._dtype), self._recorded.index, async_op
            call = TraceCall(*common, fingerprint.algorithm, peer=root, local_s=local_s, is_lent=self._is_lent)
            recorded_work = self._recorded.recorder.call(call, result)
        return recorded_work if async_op else None


def imitate(
    collective: Collective,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    op: Op | None,
    rank: int,
    num_ranks: int,
) -> None:
    """Write into `outputs` the result of `rank` in a collective if all ranks hold this rank's data.

    outputs, inputs: one tensor, one per rank, or none. op: None if nothing is reduced.
    """
    if not inputs:
        return
    given = inputs[0]
    if collective in SCATTERING:
        given = inputs[rank] if len(inputs) > 1 else given.reshape(num_ranks, given.numel() // num_ranks)[rank]
    result = given if op is None else _reduced(given, op, num_ranks)
    for output in outputs:
        if output is result:  # of a broadcast, which leaves a copy a copy
            continue
        if output.shape == result.shape:
            output.copy_(result)
        elif output.numel() and result.numel():
            repeats = -(-output.numel() // result.numel())
            output.copy_(result.reshape(-1).repeat(repeats)[: output.numel()].view(output.shape))


def _reduced(tensor: torch.Tensor, op: Op, num_ranks: int) -> torch.Tensor:
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
