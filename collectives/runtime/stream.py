"""`Crossing`: a collective's way from the CUDA stream of its caller to the stream of its group, and back.

A group has a stream of its own on each device, so that its collectives, their buffers and their order hang on no
caller's. Nothing here makes the CPU wait.
"""

from collections.abc import Callable, Sequence

import torch


class Crossing:
    """One call's: made when it is called, carried out when it is its turn, joined by whoever uses the result.

    side: the stream of the group.
    tensors: all that the call was given; their memory is not given to anyone else before `side` is done with it.
    """

    def __init__(self, side: torch.cuda.Stream, tensors: Sequence[torch.Tensor]) -> None:
        self._side = side
        self._tensors = tensors
        self._called = self._current().record_event()
        self._over: torch.cuda.Event | None = None

    def carry_out(self, turn: Callable[[], None]) -> None:
        """Do `turn` on the side, after all that its caller had asked of its own stream before the call."""
        with torch.cuda.device(self._side.device), torch.cuda.stream(self._side):
            self._side.wait_event(self._called)
            for tensor in self._tensors:
                # Who made it on another stream may drop it once the call is done, when the side may still be at it.
                tensor.record_stream(self._side)
            turn()
            self._over = self._side.record_event()
        self._tensors = ()

    def join(self) -> None:
        """Let the current stream wait for it, once it is carried out."""
        assert self._over is not None
        self._current().wait_event(self._over)

    def is_over(self) -> bool:
        """Whether the device has done it."""
        return self._over is not None and self._over.query()

    def _current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._side.device)
