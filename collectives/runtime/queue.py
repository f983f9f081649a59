"""`CollectiveQueue`: the collectives of one process group, one after the other, in the order of the calls."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist

from collectives.runtime.buffers import new_buffer
from collectives.runtime.errors import CollectiveError
from collectives.runtime.group_state import state_of
from collectives.runtime.stream import StreamSync
from collectives.runtime.transport import CPU
from collectives.runtime.work import Work


class CollectiveQueue:
    """Runs what it is given in order: in a thread of its own, or at once in the caller's where nothing is ahead.

    Handing over to another thread and back takes as long as a small collective; so who waits anyway does not.
    After a failure, when nobody knows what the others have done, everything else fails too.

    Memory: of each dtype, device and kind as much as the longest tensor for which a `buffer` was needed.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"collectives-{group.group_name}")
        self._thread_id: int | None = None
        self._queue: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._entering = threading.Lock()  # held for a moment only
        self._running = threading.Lock()  # held by whoever executes a collective
        self._running_thread: int | None = None  # who that is
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

    def run(self, call: Callable[[], None]) -> None:
        """Run `call` after all that was given before, and wait for it.

        Raises RuntimeError in a collective of the same group, since each would wait for the other for ever.
        """
        if threading.get_ident() == self._running_thread:
            raise RuntimeError("a collective was called from within another one of the same group")
        with self._entering:
            idle = not self._queue and self._running.acquire(blocking=False)
            future = None if idle else self._enqueue(call)
        if future is not None:
            self.wait(future)
            return
        try:
            self._execute(call)
        finally:
            self._running.release()

    def start(
        self, call: Callable[[], None], result: list[torch.Tensor], stream_sync: StreamSync | None = None
    ) -> Work:
        """Run `call` after all that was given before, without waiting."""
        with self._entering:
            return Work(self._enqueue(call), result, self.wait, stream_sync)

    def close(self) -> None:
        """End the thread, when what was given is done; nothing may be given any more."""
        self._thread.shutdown()

    def wait(self, future: "Future[None]", timeout_s: float | None = None) -> None:
        """Block until `future`, of a call of this queue, is done; raises what made it fail."""
        if threading.get_ident() == self._thread_id:
            # A callback of an earlier call, in the queue's own thread, waits for a later one: do it, nobody else can.
            while not future.done():
                self._run_next()
        future.result(timeout_s)

    def _enqueue(self, call: Callable[[], None]) -> "Future[None]":
        future: Future[None] = Future()
        self._thread.submit(self._run_in_thread)
        self._queue.append((call, future))
        return future

    def _run_in_thread(self) -> None:
        self._thread_id = threading.get_ident()
        self._run_next()

    def _run_next(self) -> None:
        """Execute what is first in the queue, if anything is left there."""
        error: BaseException | None = None
        with self._running:
            with self._entering:
                if not self._queue:
                    return
                call, future = self._queue.popleft()
            try:
                self._execute(call)
            except BaseException as raised:  # for whoever waits
                error = raised
        # Only now, because what is called back may call collectives.
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _execute(self, call: Callable[[], None]) -> None:
        if self._broken is not None:
            raise CollectiveError(f"an earlier collective of this group failed: {self._broken}")
        self._running_thread = threading.get_ident()
        try:
            call()
        except ValueError:  # refused before anything was sent
            raise
        except BaseException as error:  # an interrupt, too, leaves the others in the middle
            self._broken = str(error) or repr(error)
            raise
        finally:
            self._running_thread = None


def close_queue(group: dist.ProcessGroup) -> None:
    """Wait for what is under way in the queue of `group`, if it has one, and end its thread."""
    queue = state_of(group).pop(CollectiveQueue)
    if queue is not None:
        queue.close()
