"""`Work`: a collective under way, to be waited for, asked, or chained, by Python and by torch's own C++ alike.

Of one on CUDA tensors `StreamSync` knows the streams. A group has its own stream on each device, so that its
collectives, their buffers and their order depend on no caller's. Nothing there makes the CPU wait.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist


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
        """Do it on the group's stream, after everything that was queued on the caller's stream before the call."""
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


T = TypeVar("T")
WaitFor = Callable[["Future[None]", float | None], object]


class Work(dist.Work):
    """A collective in progress, as a `torch.distributed.Work` that torch accepts like the handles of its backends.

    The tensors of the collective must not be read or written before it has completed. It completes even if nobody
    waits for it, and before the program ends.

    wait_for: blocks until the future is done or the given number of seconds has passed, and raises the error of a
    collective that failed. stream_sync: synchronises the CUDA stream of a collective on CUDA tensors.

        >>> tensor = torch.ones(3)
        >>> work = collectives.all_reduce(tensor, async_op=True)
        >>> work.wait()
        True
        >>> tensor
        tensor([2., 2., 2.])
    """

    def __init__(
        self,
        future: "Future[None]",
        result: list[torch.Tensor],
        wait_for: WaitFor = Future.result,
        stream_sync: StreamSync | None = None,
    ) -> None:
        super().__init__()
        self._future = future
        self._result = result
        self._wait_for = wait_for
        self._stream_sync = stream_sync

    @classmethod
    def over(cls, result: list[torch.Tensor], stream_sync: StreamSync | None = None) -> "Work":
        """Return a collective that is over, as far as the CPU is concerned, and went well."""
        future: Future[None] = Future()
        future.set_result(None)
        return cls(future, result, stream_sync=stream_sync)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it has completed; raises what made it fail, and TimeoutError after `timeout`; it then goes on.

        On CUDA tensors it is the current stream that waits; the CPU waits only for what it has to do itself.
        """
        # From C++ comes a timeout of 0 where none was given.
        self._wait_for(self._future, timeout.total_seconds() if timeout else None)
        self._wait_on_stream()
        return True

    def _wait_on_stream(self) -> None:
        if self._stream_sync is not None:
            self._stream_sync.wait()

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        if self._stream_sync is None or not self._future.done() or self._future.exception() is not None:
            return self._future.done()
        return self._stream_sync.is_completed()

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self.is_completed() and self._future.exception() is None

    def exception(self) -> BaseException | None:
        """Return what made it fail; None if it has not."""
        return self._future.exception() if self._future.done() else None

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold the result once it has completed."""
        return self._result

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        """Return a torch Future of `result()`, which may be chained with `then`.

        What is chained runs in the thread that does the group's asynchronous collectives. The group's collectives that
        it calls come directly after this one, on every rank, before those that the program has called meanwhile. They
        are over when the call returns, so it may wait for them in any way. For one that the program has called later it
        may wait by `Work.wait`, but not by a Future: nobody would do it, and both fail after the group's timeout.

        Chain what calls collectives before the program calls the next one of the group. Once this one is over, which is
        not at the same moment on all ranks, what is chained runs at once in the thread that chains it, and what it
        calls then comes after all that the program has called before.
        """
        return self.future_of(lambda: self._result)

    def future_of(self, value: Callable[[], T]) -> "torch.futures.Future[T]":
        """Return a torch Future of `value()`, called once the collective is over; of a RuntimeError if it failed.

        value: runs in the thread that ended the collective; must not wait for another one. The tensors in it, if they
        are on CUDA devices, must be on those of `result()`.
        """
        devices: list[int | str | torch.device] = []
        if self._stream_sync is not None:
            devices += {tensor.device for tensor in self._result}
        over: torch.futures.Future[None] = torch.futures.Future(devices=devices)

        def outcome(_: object) -> T:
            self._future.result()
            self._wait_on_stream()  # whoever waits for the future lets its stream wait for the one that is current here
            return value()

        # Only what a callback raises is an error to C++, too, which is where DistributedDataParallel waits. What
        # Future.set_exception is given, C++ takes for the result.
        chained: torch.futures.Future[T] = over.then(outcome)
        self._future.add_done_callback(lambda _: over.set_result(None))
        return chained
