"""`StreamSync`: how a collective is synchronised with the CUDA stream of its caller, before and after.

A group has a stream of its own on each device, so that its collectives, their buffers and their order depend on no
caller's. Nothing here makes the CPU wait.
"""

from collections.abc import Callable, Sequence

import torch


class StreamSync:
    """One call's: made when it is called, run when it is its turn, waited for by whoever uses the result.

    group_stream: the stream of the group, on which the collective runs.
    tensors: all that the call was given; their memory is not given to anyone else before the stream is done with it.
    """

    def __init__(self, group_stream: torch.cuda.Stream, tensors: Sequence[torch.Tensor]) -> None:
        self._group_stream = group_stream
        self._tensors = tensors
        self._called = self._current_stream().record_event()
        self._done: torch.cuda.Event | None = None

    def run(self, collective: Callable[[], None]) -> None:
        """Do it on the group's stream, after all that its caller had asked of its own stream before the call."""
        with torch.cuda.device(self._group_stream.device), torch.cuda.stream(self._group_stream):
            self._group_stream.wait_event(self._called)
            for tensor in self._tensors:
                # Who made it on another stream may drop it once the call is done, when this one may still be at it.
                tensor.record_stream(self._group_stream)
            collective()
            self._done = self._group_stream.record_event()
        self._tensors = ()

    def wait(self) -> None:
        """Let the current stream wait for it, once it has been run."""
        assert self._done is not None
        self._current_stream().wait_event(self._done)

    def is_completed(self) -> bool:
        """Whether the device has done it."""
        return self._done is not None and self._done.query()

    def _current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._group_stream.device)
