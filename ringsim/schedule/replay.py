"""`run`: the interpreter of schedules, step by step on any state; `replay`: `run` on arrays in one process.

Every execution must have the result of `run`.
"""

import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ringsim.schedule.schedule import Schedule
from ringsim.schedule.steps import Step, Transfer


class State(Protocol):
    """The chunks of all ranks, as `run` changes them: numbers, or counts of contributions."""

    def read(self, step: int, transfer: Transfer, /) -> Any:
        """Return the data that is sent, which later writes must not change."""

    def write(self, step: int, transfer: Transfer, sent: Any, /) -> None:
        """Add `sent` to the receiver's chunk, or overwrite the chunk with it."""


def run(schedule: Schedule, state: State) -> Iterator[tuple[int, Step]]:
    """Run the steps one after the other, and yield each step after it."""
    for index, step in enumerate(schedule.steps):
        transfers = list(step)
        # All reads come before all writes: rules 1 and 4.
        sent = [state.read(index, transfer) for transfer in transfers]
        for transfer, value in zip(transfers, sent, strict=True):
            state.write(index, transfer, value)
        yield index, step


def replay(
    schedule: Schedule,
    buffers: Sequence[Any],
    *,
    sent: Callable[[Any], Any] | None = None,
    combine: Callable[[Any, Any], object] = operator.iadd,
) -> None:
    """Run `schedule` on one buffer per rank, in place; a real run on the same data gives the same bits.

    buffers: one-dimensional NumPy arrays or torch tensors of equal length and dtype, one per rank.
    sent: changes a chunk that is sent, for example by rounding; its sender continues with the changed chunk.
    combine: called with a chunk and the received data, to change the chunk in place.

    Raises ValueError unless there is one buffer per rank, all of one length.

        >>> import numpy as np
        >>> from ringsim import replay, ring_all_reduce
        >>> buffers = [np.arange(4) + 10 * rank for rank in range(3)]
        >>> replay(ring_all_reduce(3), buffers)
        >>> buffers[0]
        array([30, 33, 36, 39])
    """
    lengths = {len(buffer) for buffer in buffers}
    if len(buffers) != schedule.num_ranks or len(lengths) != 1:
        raise ValueError(
            f"{schedule}: got {len(buffers)} buffers of lengths {sorted(lengths)}; needs one of equal length per rank"
        )
    bounds = schedule.bounds(lengths.pop()).tolist()
    for _ in run(schedule, _Buffers(buffers, bounds, sent, combine)):
        pass


@dataclass(frozen=True, slots=True)
class _Buffers:
    buffers: Sequence[Any]
    bounds: Sequence[int]
    sent: Callable[[Any], Any] | None
    combine: Callable[[Any, Any], object]

    def read(self, _: int, transfer: Transfer) -> Any:
        source = self._chunk(transfer.src, transfer.chunk)
        if self.sent is not None:
            source[:] = self.sent(source)
        return copy.deepcopy(source)

    def write(self, _: int, transfer: Transfer, sent: Any) -> None:
        target = self._chunk(transfer.dst, transfer.chunk)
        if transfer.reduce:
            self.combine(target, sent)
        else:
            target[:] = sent

    def _chunk(self, rank: int, chunk: int) -> Any:
        return self.buffers[rank][self.bounds[chunk] : self.bounds[chunk + 1]]
