"""`ListedSteps`: steps written out, whose dependencies are worked out here."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ringsim.schedule.memory import require_memory
from ringsim.schedule.step import NEVER, Ints, ScheduleError, Step, Steps
from ringsim.schedule.user_steps import ArrayColumns

MAX_CHANNELS = 2**20  # more than a rank has peers, or a schedule rings
LARGE_STEP = 2**16  # transfers; smaller ones come one by one, and memory is not looked at for each
BYTES_LISTED = 100  # of memory for each transfer of a step that is listed, while it is made, at most


class ListedSteps(Steps):
    """Steps written out; the columns `data_dependency` and `buffer_dependency` are worked out here.

    steps: for each step its columns, which are broadcast against one another and read row by row.
    """

    def __init__(self, num_ranks: int, num_chunks: int, steps: Iterable[ArrayColumns]) -> None:
        tables = f"a list of who sends what: {num_ranks:,} ranks x {num_chunks:,} chunks"
        require_memory(tables, 2 * 8 * num_ranks * num_chunks)
        self._last_write = np.full((num_ranks, num_chunks), NEVER, dtype=np.int64)
        self._last_send = np.full((num_ranks, num_chunks), NEVER, dtype=np.int64)
        self._steps: list[Step] = []
        self._lookback = 0
        self._num_channels = 1
        for columns in steps:
            same_length = np.broadcast_arrays(*columns)
            if same_length[0].size > LARGE_STEP:
                num_bytes = same_length[0].size * BYTES_LISTED
                require_memory(f"a step of {same_length[0].size:,} transfers", num_bytes)
            self._append(*(np.ravel(column) for column in same_length))

    def _append(self, *columns: npt.NDArray[Any]) -> None:
        src, dst, chunk, _, channel = (column.astype(np.int64) for column in columns)
        index = len(self._steps)
        _check_in_range(index, src, dst, chunk, channel, *self._last_write.shape)
        data_dependency = self._last_write[src, chunk]
        self._last_send[src, chunk] = index
        buffer_dependency = self._last_send[dst, chunk]
        self._last_write[dst, chunk] = index
        reduce = columns[3].astype(np.bool_)
        self._steps.append(Step(src, dst, chunk, reduce, channel, data_dependency, buffer_dependency))
        self._lookback = max(self._lookback, self._steps[-1].reach(index))
        self._num_channels = max(self._num_channels, 1 + int(channel.max(initial=0)))

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def lookback(self) -> int:
        return self._lookback

    @property
    def num_channels(self) -> int:
        return self._num_channels

    def last_write(self, rank: Ints, chunk: Ints) -> Ints:
        return self._last_write[rank, chunk]

    def last_send(self, rank: Ints, chunk: Ints) -> Ints:
        return self._last_send[rank, chunk]

    def step(self, index: int) -> Step:
        return self._steps[index]


def _check_in_range(
    step: int, src: Ints, dst: Ints, chunk: Ints, channel: Ints, num_ranks: int, num_chunks: int
) -> None:
    """Raise ScheduleError for the first transfer that names what there is not, or one rank twice."""
    limits = (num_ranks, num_ranks, num_chunks, MAX_CHANNELS)
    named = list(zip(("src", "dst", "chunk", "channel"), (src, dst, chunk, channel), limits, strict=True))
    wrong = src == dst
    for _, values, limit in named:
        wrong = wrong | (values < 0) | (values >= limit)
    if not wrong.any():
        return
    row = int(wrong.argmax())
    for name, values, limit in named:
        if not 0 <= values[row] < limit:
            raise ScheduleError(f"step {step}: {name} {values[row]} is not in 0..{limit - 1}")
    raise ScheduleError(f"step {step}, rank {src[row]}: chunk {chunk[row]} is sent to itself")
