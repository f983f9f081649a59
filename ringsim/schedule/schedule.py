"""`Schedule`: a collective algorithm as data, and the one rule by which everything executes it.

A schedule is a sequence of steps, each a set of transfers. A transfer names the sending rank, the receiving rank, the
chunk, whether the receiver adds (REDUCE) or overwrites (COPY), and the channel. A schedule holds no bytes, times or
tensors.

The rule of execution, which docs/rule.md explains, says when a transfer happens. Steps are an order, not a barrier, and
within a step the order of the rows counts:

1. Reading: a transfer may start when `src` has applied all earlier steps' writes to its chunk, and sends what the chunk
had before this step.
2. Sending: transfers of one rank on one channel leave in step order, one after the other.
3. Applying: a rank applies the writes to one chunk in step order, and so the chunks of one connection, which is one
channel of one sender. Every run therefore adds in the same order, and gives the same bits.
4. Overwriting: a write to a chunk waits until the rank's own earlier sends of it, this step's included, have left.

No schedule can deadlock, and `replay` gives the result of any execution. Executors are `verify`, `simulate`, `replay`
and `collectives.execute`; they may wait for more (see `in_order` of `dependencies`).
"""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.files import quoted
from ringsim.schedule.collective import Collective
from ringsim.schedule.partition import PartitionFunction, partition
from ringsim.schedule.steps import Ints, Steps, Transfer
from ringsim.schedule.user_steps import columns_by_step, listed_steps, require_count, transfers_by_step
from ringsim.units import plural

Columns = tuple[npt.ArrayLike, ...]  # src, dst, chunk, reduce and, if it is not 0 for all, channel


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """One algorithm for one number of ranks: a collective, its chunks and its steps.

    partition: a function like `partition`, by which simulation and execution cut tensors.

        >>> from ringsim import Collective, Schedule, Transfer
        >>> steps = [[Transfer(src=0, dst=1, chunk=0, reduce=False)], [Transfer(1, 2, 0, False)]]
        >>> Schedule.from_transfers(Collective.BROADCAST, "mine", 3, 1, steps)
        Schedule(broadcast mine over 3 ranks, 1 chunk, 2 steps)
    """

    collective: Collective
    algorithm: str
    num_ranks: int
    num_chunks: int
    steps: Steps
    partition: PartitionFunction = partition

    def __post_init__(self) -> None:
        require_count("num_ranks", self.num_ranks)
        require_count("num_chunks", self.num_chunks)
        self._require(isinstance(self.collective, Collective), "collective", "one of Collective")
        self._require(isinstance(self.algorithm, str), "algorithm", "a name")
        self._require(isinstance(self.steps, Steps), "steps", "Steps, which Schedule.from_transfers makes of lists")
        self._require(callable(self.partition), "partition", "a function as partition is")

    def _require(self, holds: bool, field: str, kind: str) -> None:
        if not holds:
            raise ValueError(f"{field} {quoted(getattr(self, field))}: must be {kind}")

    @classmethod
    def from_transfers(
        cls,
        collective: Collective,
        algorithm: str,
        num_ranks: int,
        num_chunks: int,
        steps: Iterable[Iterable[Transfer]],
    ) -> Schedule:
        """Make a schedule from one iterable of transfers per step.

        Raises ScheduleError for a rank or chunk out of range.
        """
        return cls.from_columns(collective, algorithm, num_ranks, num_chunks, transfers_by_step(steps))

    @classmethod
    def from_columns(
        cls, collective: Collective, algorithm: str, num_ranks: int, num_chunks: int, steps: Iterable[Columns]
    ) -> Schedule:
        """Make a schedule from src, dst, chunk, reduce and channel of each step, arrays that broadcast.

        The channel is optional, by default 0. Raises ScheduleError for a rank or chunk out of range.
        """
        require_count("num_ranks", num_ranks)
        require_count("num_chunks", num_chunks)
        listed = listed_steps(num_ranks, num_chunks, columns_by_step(steps))
        return cls(collective, algorithm, num_ranks, num_chunks, listed)

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    @property
    def num_transfers(self) -> int:
        return self.steps.num_transfers

    def bounds(self, num_elements: int) -> Ints:
        """Return (num_chunks + 1,) bounds: chunk `i` of a tensor holds the elements `bounds[i]` to `bounds[i + 1]`.

        In an all_to_all, `num_elements` counts the tensors of all ranks, one after the other. Raises ValueError for a
        negative number.
        """
        return self.partition(num_elements, self.num_chunks)

    def chunk_bytes(self, size_bytes: int, element_bytes: int = 1) -> Ints:
        """Return the bytes of each chunk, (num_chunks,), of a tensor of `size_bytes` with elements of `element_bytes`.

        In an all_to_all each rank has such a tensor, and the chunks are those of all ranks. Raises ValueError for a
        size that is negative or not whole elements.
        """
        if element_bytes < 1 or size_bytes % element_bytes:
            raise ValueError(f"size {size_bytes} bytes: must be a multiple of the element size, {element_bytes} bytes")
        num_elements = size_bytes // element_bytes * self.collective.num_tensors(self.num_ranks)
        return np.diff(self.bounds(num_elements)) * element_bytes

    def __repr__(self) -> str:
        chunks, steps = plural(self.num_chunks, "chunk"), plural(self.num_steps, "step")
        return f"Schedule({self}, {chunks}, {steps})"

    def __str__(self) -> str:
        return f"{self.collective.value} {self.algorithm} over {plural(self.num_ranks, 'rank')}"
