"""`StreamOrder`: how far each stream of a program must have come before it goes on.

A stream works off what it is given in that order. It waits for another one only where the program lets it wait for
what it had given to that one until a moment, which a `StreamMoment` stands for.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

BEFORE_THE_STEP = -1
MAIN = "main"  # the stream of the computations, whatever the program calls it
COMPUTATIONS = -1  # in a Position

# By group: the last of its calls that is over, all before it too. Under COMPUTATIONS: the last event that computes.
Position = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StreamMoment:
    """A place in what a stream was given in a step, and what is over when the stream comes there."""

    step: int
    position: Position


class StreamOrder:
    """The positions of all streams in one step."""

    def __init__(self, main: Hashable) -> None:
        self._main = main
        self._positions: dict[Hashable, dict[int, int]] = {}

    def name(self, stream: Any) -> Hashable:
        """Return MAIN for a default stream, and any other stream as it is."""
        if stream is self._main or (torch.cuda.is_initialized() and stream == torch.cuda.default_stream()):
            return MAIN
        return stream  # type: ignore[no-any-return]

    def current(self) -> Hashable:
        """Return the stream to which the program gives work now: one of a GPU, or a placeholder of a CPU."""
        on_gpu = self.name(torch.cuda.current_stream()) if torch.cuda.is_initialized() else MAIN
        return on_gpu if on_gpu != MAIN else self.name(torch.cpu.current_stream())

    def position(self, stream: Hashable) -> Position:
        """Return what is over when a stream comes to what it is given next."""
        return dict(self._positions.get(stream, {}))

    def advance(self, stream: Hashable, position: Position) -> list[int]:
        """Let a stream wait until all of `position` is over; return the calls for which it had not waited."""
        own = self._positions.setdefault(stream, {})
        later = {key: index for key, index in position.items() if index > own.get(key, BEFORE_THE_STEP)}
        own.update(later)
        return sorted(index for key, index in later.items() if key != COMPUTATIONS)
