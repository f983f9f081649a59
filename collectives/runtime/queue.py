"""`CollectiveQueue`: the collectives of one process group, in the order of the calls, and their handles (`Work`)."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import TypeVar
from weakref import ref

import torch
import torch.distributed as dist

from collectives.runtime.backends import CPU, new_buffer, time_limit_of
from collectives.runtime.errors import CollectiveError
from collectives.runtime.group_state import state_of
from collectives.runtime.schedule_run import ScheduleRun


class StreamSync:
    """The stream synchronisation of one call on CUDA tensors; it never makes the CPU wait.

    A group has its own stream on each device, and depends on no caller's. Create this at the call, `run` it at the
    call's turn, and `wait` before the result is used.

    tensors: of the call, whose memory is not reused before the stream is done.
    """

    def __init__(self, group_stream: torch.cuda.Stream, tensors: Sequence[torch.Tensor]) -> None:
        self._group_stream = group_stream
        self._tensors = tensors
        self._called = self._current_stream().record_event()
        self._done: torch.cuda.Event | None = None

    def run(self, collective: Callable[[], None]) -> None:
        with torch.cuda.device(self._group_stream.device), torch.cuda.stream(self._group_stream):
            self._group_stream.wait_event(self._called)
            for tensor in self._tensors:
                # The owner may drop the tensor after the call, while this stream still uses it.
                tensor.record_stream(self._group_stream)
            collective()
            self._done = self._group_stream.record_event()
        self._tensors = ()

    def wait(self) -> None:
        assert self._done is not None
        self._current_stream().wait_event(self._done)

    def is_completed(self) -> bool:
        return self._done is not None and self._done.query()

    def _current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._group_stream.device)


T = TypeVar("T")
WaitFor = Callable[["Future[None]", float | None], object]
_OVER: Future[None] = Future()  # one for all calls that are over, since making one takes longer than adding 4 KiB
_OVER.set_result(None)


class Work(dist.Work):
    """A collective in progress, as a `torch.distributed.Work` that torch accepts like the handles of its backends.

    Its tensors must not be read or written before it has completed. It completes even if nobody waits for it, and
    before the program ends.

    wait_for: blocks until the future is done or the given seconds have passed; raises the collective's error.

        >>> work = collectives.all_reduce(torch.ones(3), async_op=True)
        >>> work.wait()
        True
        >>> work.result()
        [tensor([2., 2., 2.])]
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
        """Return the handle of a collective that succeeded and is over for the CPU."""
        return cls(_OVER, result, lambda *_: None, stream_sync)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the collective has completed. Raises its error, or TimeoutError after `timeout`; it continues.

        On CUDA tensors the current stream waits; the CPU waits only for its own part.
        """
        # C++ passes a timeout of 0 if none was given.
        self._wait_for(self._future, timeout.total_seconds() if timeout else None)
        self._wait_on_stream()
        return True

    def _wait_on_stream(self) -> None:
        if self._stream_sync is not None:
            self._stream_sync.wait()

    def is_completed(self) -> bool:
        if self._stream_sync is None or not self._future.done() or self._future.exception() is not None:
            return self._future.done()
        return self._stream_sync.is_completed()

    def is_success(self) -> bool:
        return self.is_completed() and self._future.exception() is None

    def exception(self) -> BaseException | None:
        return self._future.exception() if self._future.done() else None

    def result(self) -> list[torch.Tensor]:
        return self._result

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        """Return a torch Future of `result()`, which may be chained with `then`.

        A callback runs in the thread of the group's asynchronous collectives. Collectives of the group that it calls
        come directly after this one, on every rank, and it may wait for them in any way. It may wait for a later call
        of the program by `Work.wait`, but not by a Future: both fail after the group's timeout.

        Chain a callback that calls collectives before the program's next call of the group. If this collective is over
        by then, which differs from rank to rank, the callback runs at once in the thread that chains it.
        """
        return self.future_of(lambda: self._result)

    def future_of(self, value: Callable[[], T]) -> "torch.futures.Future[T]":
        """Return a torch Future of `value()`, called once the collective is over; of a RuntimeError if it failed.

        value: runs in the thread that ended the collective, and must not wait for another. Its CUDA tensors must be on
        devices of `result()`.
        """
        devices: list[int | str | torch.device] = []
        if self._stream_sync is not None:
            devices += {tensor.device for tensor in self._result}
        over: torch.futures.Future[None] = torch.futures.Future(devices=devices)

        def outcome(_: object) -> T:
            self._future.result()
            self._wait_on_stream()  # whoever waits for the future lets its stream wait for the one that is current here
            return value()

        # DistributedDataParallel waits in C++, which takes the argument of Future.set_exception for the result; an
        # exception raised in a callback is an error there as well.
        chained: torch.futures.Future[T] = over.then(outcome)
        self._future.add_done_callback(lambda _: over.set_result(None))
        return chained


class CollectiveQueue:
    """Runs collectives in order: in its own thread, or in the caller's if nothing is ahead and the caller waits anyway.

    After a failure the state of the other ranks is unknown, so everything else fails too.

    Memory: for each dtype, device and kind, the longest tensor for which a `buffer` was needed.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._limit = time_limit_of(group)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"collectives-{group.group_name}")
        self._queue: deque[tuple[Callable[[], object], Future[None]]] = deque()
        self._entering = threading.Lock()  # held for a moment only
        self._turn = threading.Lock()  # held by whoever executes a collective, and until its callbacks are over
        self._turn_of: int | None = None  # the thread that holds it
        self._is_executing = self._is_watched = False
        self._is_closed = threading.Event()
        self._calling_back_since: float | None = None
        self._broken: str | None = None  # not the error itself, whose traceback would keep the group alive
        self._buffers: dict[tuple[torch.dtype, int | None, bool], torch.Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def buffer(self, length: int, dtype: torch.dtype, device: torch.device = CPU, pinned: bool = False) -> torch.Tensor:
        """Return a buffer for the running collective, (length,); kept, since new memory costs more to fill."""
        key = dtype, device.index, pinned  # the CPU's index is None
        kept = self._buffers.get(key)
        if kept is None or len(kept) < length:
            kept = self._buffers[key] = new_buffer(length, dtype, device, pinned)
        return kept[:length]

    def stream_sync(self, tensors: Sequence[torch.Tensor]) -> StreamSync:
        device = tensors[0].device
        with self._entering:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
        return StreamSync(self._streams[device], tensors)

    def run(self, call: Callable[[], object]) -> None:
        """Run `call` after all earlier ones, and wait for it; in a callback of an earlier call, at once.

        Raises RuntimeError in a collective of the same group.
        """
        if self._has_turn():
            self._execute(call)
            return
        with self._entering:
            idle = not self._queue and self._turn.acquire(blocking=False)
            future = None if idle else self._enqueue(call)
        if future is not None:
            self.wait(future)
            return
        self._turn_of = threading.get_ident()
        try:
            self._execute(call)
        finally:
            self._end_turn()

    def start(
        self, call: Callable[[], object], result: list[torch.Tensor], stream_sync: StreamSync | None = None
    ) -> Work:
        """Like `run`, without waiting."""
        if self._has_turn():
            future: Future[None] = Future()
            _settle(future, self._outcome(call))
            return Work(future, result, self.wait, stream_sync)
        with self._entering:
            if not self._is_watched:
                self._is_watched = True
                watch = threading.Thread(target=_watch, args=(ref(self), self._is_closed), name="collectives-watch")
                watch.daemon = True
                watch.start()
            return Work(self._enqueue(call), result, self.wait, stream_sync)

    def close(self) -> None:
        self._thread.shutdown()
        self._is_closed.set()
        self._buffers.clear()  # others may still hold the queue

    def wait(self, future: "Future[None]", timeout_s: float | None = None) -> None:
        # A callback of an earlier call waits for a later one: only this thread can execute it.
        while self._has_turn() and not future.done():
            self._refuse_nesting()
            self._run_next()
        try:
            future.result(timeout_s)
        except TimeoutError:
            if future.done():  # it is what the call has raised
                raise
            raise TimeoutError(
                f"not over after {timeout_s:g} s, the timeout of this wait; the group is at {self._progress()}"
            ) from None

    def _progress(self) -> str:
        frame = sys._current_frames().get(self._turn_of or -1)
        while frame is not None and frame.f_code is not ScheduleRun._execute.__code__:
            frame = frame.f_back
        if frame is None or frame.f_locals["index"] < 0:
            return "a collective that has not begun"
        run, opcode, index = (frame.f_locals[name] for name in ("self", "opcode", "index"))
        return f"rank {run.group.rank()}: {run.part.schedule}: {run.doing(opcode, index)}"

    def fail_if_stuck(self) -> None:
        """Fail all queued calls if a callback, which may wait for one, exceeds the group's timeout."""
        since = self._calling_back_since
        if since is None or time.monotonic() < since + (limit := self._limit()).seconds:
            return
        self._broken = (
            f"a callback of an earlier collective of this group has taken longer than {limit}; if "
            "it waits for a later collective, use Work.wait() there instead of waiting for its Future"
        )
        while self._queue:
            with self._entering, suppress(IndexError):
                _settle(self._queue.popleft()[1], CollectiveError(self._broken))

    def _has_turn(self) -> bool:
        return self._turn_of == threading.get_ident()

    def _end_turn(self) -> None:
        self._turn_of = self._calling_back_since = None
        self._turn.release()

    def _enqueue(self, call: Callable[[], object]) -> "Future[None]":
        future: Future[None] = Future()
        self._thread.submit(self._run_in_thread)
        self._queue.append((partial(copy_context().run, call), future))  # with the call's own timeout
        return future

    def _run_in_thread(self) -> None:
        self._turn.acquire()
        self._turn_of = threading.get_ident()
        try:
            self._run_next()
        finally:
            self._end_turn()

    def _run_next(self) -> None:
        with self._entering:
            if not self._queue:
                return
            call, future = self._queue.popleft()
        error = self._outcome(call)
        self._calling_back_since = time.monotonic()
        _settle(future, error)

    def _outcome(self, call: Callable[[], object]) -> BaseException | None:
        try:
            self._execute(call)
        except BaseException as error:
            return error
        return None

    def _refuse_nesting(self) -> None:
        if self._is_executing:
            raise RuntimeError(
                "a collective was called while this thread executes another one of the same process group"
            )

    def _execute(self, call: Callable[[], object]) -> None:
        self._refuse_nesting()
        if self._broken is not None:
            raise CollectiveError(f"an earlier collective of this group failed: {self._broken}")
        in_callback, self._calling_back_since = self._calling_back_since is not None, None
        self._is_executing = True
        try:
            call()
        except ValueError:  # refused before anything was sent
            raise
        except BaseException as error:  # an interrupt, too, leaves the others in the middle
            self._broken = str(error) or repr(error)
            raise
        finally:
            self._is_executing = False
            if in_callback:
                self._calling_back_since = time.monotonic()


def close_queue(group: dist.ProcessGroup) -> None:
    """Wait for the calls in the queue of `group`, if it has one, and end its thread."""
    queue = state_of(group).pop(CollectiveQueue)
    if queue is not None:
        queue.close()


def _settle(future: "Future[None]", error: BaseException | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


_WATCH_INTERVAL_S = 0.25


def _watch(queue: "ref[CollectiveQueue]", is_closed: threading.Event) -> None:
    """Fail a stuck queue: a callback that waits in C++ for a later call cannot."""
    while not is_closed.wait(_WATCH_INTERVAL_S) and (watched := queue()) is not None:
        watched.fail_if_stuck()
        del watched
