"""`split`: every chunk in pieces that follow one another like a train."""

from dataclasses import replace

import numpy as np

from ringsim.schedule.schedule import NEVER, Ints, Schedule, Step, Steps, constant, only_value


def split(schedule: Schedule, pieces: int) -> Schedule:
    """`schedule` with each chunk cut into `pieces` neighbouring chunks, and each step into as many steps.

    Piece j of chunk c is chunk `c * pieces + j` and goes in step `step * pieces + j`. Since steps are an
    order and not a barrier, a piece goes on while the next one arrives. `partition` keeps the shares of
    the ranks where they were. For a pipeline that runs ahead of its order of application, see `pipeline`.

    Raises ValueError for less than one piece.
    """
    check_pieces(pieces)
    if pieces == 1:
        return schedule
    return replace(schedule, num_chunks=schedule.num_chunks * pieces, steps=SplitSteps(schedule.steps, pieces))


def check_pieces(pieces: int) -> None:
    """Raise ValueError for less than one piece."""
    if pieces < 1:
        raise ValueError(f"pieces {pieces}: must be at least 1")


class SplitSteps(Steps):
    """Steps that each send one piece of what a step of `whole` sends."""

    def __init__(self, whole: Steps, pieces: int) -> None:
        self._whole = whole
        self._pieces = pieces

    def __len__(self) -> int:
        return len(self._whole) * self._pieces

    @property
    def lookback(self) -> int:
        return self._whole.lookback * self._pieces

    @property
    def num_transfers(self) -> int:
        return self._whole.num_transfers * self._pieces

    def last_write(self, rank: Ints, chunk: Ints) -> Ints:
        return self._number(self._whole.last_write(rank, chunk // self._pieces), chunk % self._pieces)

    def last_send(self, rank: Ints, chunk: Ints) -> Ints:
        return self._number(self._whole.last_send(rank, chunk // self._pieces), chunk % self._pieces)

    def step(self, index: int) -> Step:
        step = self._whole.step(index // self._pieces)
        piece = index % self._pieces
        return replace(
            step,
            chunk=step.chunk * self._pieces + piece,
            ready_after=self._number(step.ready_after, piece),
            free_after=self._number(step.free_after, piece),
        )

    def _number(self, step: Ints, piece: Ints | int) -> Ints:
        only = only_value(step)
        if only is not None and isinstance(piece, int):
            return constant(NEVER if only == NEVER else only * self._pieces + piece, len(step))
        return np.where(step == NEVER, NEVER, step * self._pieces + piece)
