"""`CollectiveQueue`: the collectives of one process group, one after the other, in the order of the calls."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from weakref import WeakSet

import torch
import torch.distributed as dist

from collectives.runtime.device_transport import CPU, new_buffer, time_limit_of
from collectives.runtime.errors import CollectiveError
from collectives.runtime.group_state import state_of
from collectives.runtime.schedule_run import ScheduleRun
from collectives.runtime.work import StreamSync, Work


class CollectiveQueue:
    """Runs what it is given in order: in its own thread, or at once in the caller's where nothing is ahead.

    Handing over to another thread and back takes as long as a small collective; so who waits anyway does not.

    What a callback of a call calls comes directly after that call, on every rank, however far the program has got
    there, if the callback was attached before the next call: the callback's own thread does it at once. So a callback
    may wait for it in any way, also where only C++ can see the waiting, and ranks whose callbacks and programs overlap
    in different ways still agree on the order.

    After a failure, when nobody knows what the others have done, everything else fails too.

    Memory: of each dtype, device and kind as much as the longest tensor for which a `buffer` was needed.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._limit = time_limit_of(group)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"collectives-{group.group_name}")
        self._queue: deque[tuple[Callable[[], object], Future[None]]] = deque()
        self._entering = threading.Lock()  # held for a moment only
        self._turn = threading.Lock()  # held by whoever executes a collective, and until its callbacks are over
        self._turn_of: int | None = None  # the thread that holds it
        self._is_executing = False
        self._calling_back_since: float | None = None
        self._broken: str | None = None  # not the error itself, whose traceback would keep the group alive
        self._buffers: dict[tuple[torch.dtype, int | None, bool], torch.Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def buffer(self, length: int, dtype: torch.dtype, device: torch.device = CPU, pinned: bool = False) -> torch.Tensor:
        """(length,): for the collective that is running; kept, since new memory costs more to fill."""
        key = dtype, device.index, pinned  # the CPU's index is None
        kept = self._buffers.get(key)
        if kept is None or len(kept) < length:
            kept = self._buffers[key] = new_buffer(length, dtype, device, pinned)
        return kept[:length]

    def stream_sync(self, tensors: Sequence[torch.Tensor]) -> StreamSync:
        """For a call that is made now with these CUDA tensors, all on one device."""
        device = tensors[0].device
        with self._entering:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
        return StreamSync(self._streams[device], tensors)

    def run(self, call: Callable[[], object]) -> None:
        """Run `call` after all that was given before, and wait for it; in a callback of an earlier call, at once.

        Raises RuntimeError in a collective of the same group, since each would wait for the other for ever.
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
        """Run `call` after all that was given before, without waiting; in a callback of an earlier call, at once."""
        if self._has_turn():
            future: Future[None] = Future()
            _settle(future, self._outcome(call))
            return Work(future, result, self.wait, stream_sync)
        _watch_over(self)
        with self._entering:
            return Work(self._enqueue(call), result, self.wait, stream_sync)

    def close(self) -> None:
        """End the thread, when what was given is done, and let go of all buffers; nothing may be given any more."""
        self._thread.shutdown()
        self._buffers.clear()  # others may still hold the queue

    def wait(self, future: "Future[None]", timeout_s: float | None = None) -> None:
        """Block until `future`, of a call of this queue, is done; raises what made it fail."""
        # A callback of an earlier call waits for a later one: do it, nobody else can.
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
        """Return what the thread does that has the turn, in words."""
        frame = sys._current_frames().get(self._turn_of or -1)
        while frame is not None and frame.f_code is not ScheduleRun._execute.__code__:
            frame = frame.f_back
        if frame is None or frame.f_locals["index"] < 0:
            return "a collective that has not begun"
        run, opcode, index = (frame.f_locals[name] for name in ("self", "opcode", "index"))
        return f"rank {run.group.rank()}: {run.part.schedule}: {run.doing(opcode, index)}"

    def fail_if_stuck(self) -> None:
        """Let all that is queued fail if a callback has taken longer than the group's timeout: it may wait for it."""
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
        """Execute what is first in the queue, if anything is left there, and what is called back then."""
        with self._entering:
            if not self._queue:
                return
            call, future = self._queue.popleft()
        error = self._outcome(call)
        self._calling_back_since = time.monotonic()
        _settle(future, error)

    def _outcome(self, call: Callable[[], object]) -> BaseException | None:
        """Execute `call`; returns what it raised, for whoever waits."""
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
    """Wait for what is under way in the queue of `group`, if it has one, and end its thread."""
    queue = state_of(group).pop(CollectiveQueue)
    if queue is not None:
        queue.close()


def _settle(future: "Future[None]", error: BaseException | None) -> None:
    """End `future`, which runs its callbacks in this thread."""
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


_WATCHED: "WeakSet[CollectiveQueue]" = WeakSet()
_WATCHING = threading.Lock()  # held for a moment only: a set that changes cannot be gone through
_WATCH_INTERVAL_S = 0.25


def _watch_over(queue: CollectiveQueue) -> None:
    """Let `queue` fail if it is stuck: a callback that waits in C++ for a later call can itself do nothing about it."""
    if queue not in _WATCHED:
        if not any(thread.name == _watch.__name__ for thread in threading.enumerate()):
            threading.Thread(target=_watch, name=_watch.__name__, daemon=True).start()
        with _WATCHING:
            _WATCHED.add(queue)


def _watch() -> None:
    while True:
        time.sleep(_WATCH_INTERVAL_S)
        _look_at_all()


def _look_at_all() -> None:
    with _WATCHING:
        queues = list(_WATCHED)  # which keeps none of them alive while the thread sleeps
    for queue in queues:
        queue.fail_if_stuck()
