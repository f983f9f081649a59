"""`Lane`: the collectives of one process group, one after the other, in the order in which they were called."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, get_debug_level

from collectives.agreement import Agreement
from collectives.errors import CollectiveError
from collectives.execute import resolve


class Work:
    """A collective under way, with the methods of torch.distributed's Work.

    The tensors it was given must not be touched before it has completed.
    """

    def __init__(self, future: "Future[None]", result: list[torch.Tensor]) -> None:
        self._future = future
        self._result = result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it has completed; raises what made it fail, and TimeoutError after `timeout`."""
        self._future.result(timeout.total_seconds() if timeout else None)
        return True

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return self._future.done()

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self._future.done() and self._future.exception() is None

    def exception(self) -> BaseException | None:
        """What made it fail; None if it has not."""
        return self._future.exception() if self._future.done() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result once it has completed."""
        return self._result

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        """A torch Future of `result()`, which may be chained with `then`."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

        def pass_on(done: "Future[None]") -> None:
            error = done.exception()
            if isinstance(error, Exception):
                future.set_exception(error)  # type: ignore[arg-type]  # annotated as a result in torch
            else:
                future.set_result(self._result)

        self._future.add_done_callback(pass_on)
        return future


class Lane:
    """Runs what it is given in order: in a thread of its own, or at once in the caller's where nothing is ahead.

    Handing over to another thread and back takes as long as a small collective; so who waits anyway does not.
    After a failure, when nobody knows what the others have done, everything else fails too.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._running = threading.Lock()
        self._entering = threading.Lock()
        self._last: Future[None] | None = None
        self._broken: CollectiveError | None = None
        self._buffers: dict[torch.dtype, torch.Tensor] = {}
        self.agreement: Agreement | None = None

    def buffer(self, length: int, dtype: torch.dtype) -> torch.Tensor:
        """(length,): room for the collective that is running; kept, since fresh memory costs more to fill."""
        if dtype not in self._buffers or len(self._buffers[dtype]) < length:
            self._buffers[dtype] = torch.empty(length, dtype=dtype)
        return self._buffers[dtype][:length]

    def run(self, call: Callable[[], None]) -> None:
        """Run `call` after all that was given before, and wait for it."""
        with self._entering:
            idle = self._last is None or self._last.done()
            future = None if idle else self._submit(call)
            if future is None:
                self._guarded(call)
        if future is not None:
            future.result()

    def start(self, call: Callable[[], None], result: list[torch.Tensor]) -> Work:
        """Run `call` after all that was given before, without waiting."""
        with self._entering:
            return Work(self._submit(call), result)

    def _submit(self, call: Callable[[], None]) -> "Future[None]":
        self._last = self._thread.submit(self._guarded, call)
        return self._last

    def _guarded(self, call: Callable[[], None]) -> None:
        with self._running:
            if self._broken is not None:
                raise CollectiveError(f"an earlier collective of this group failed: {self._broken}")
            try:
                call()
            except CollectiveError as error:
                self._broken = error
                raise


_LANES: WeakKeyDictionary[dist.ProcessGroup, Lane] = WeakKeyDictionary()


def lane_of(group: dist.ProcessGroup) -> Lane:
    """The lane of `group`, which lives as long as the group."""
    if group not in _LANES:
        _LANES[group] = Lane(f"collectives-{group.group_name}")
        if get_debug_level() != DebugLevel.OFF:
            check_calls(group)
    return _LANES[group]


def check_calls(group: dist.ProcessGroup | None = None, on: bool = True) -> None:
    """From now on make sure, before every collective of `group`, that all its ranks are about to do the same.

    To be called on every rank alike. On by default with TORCH_DISTRIBUTED_DEBUG=INFO or DETAIL. A mismatch raises
    MismatchError on every rank, with what each was about to do; it costs as much time as a small collective.
    """
    group = resolve(group)
    lane_of(group).agreement = Agreement(group) if on and group.size() > 1 else None
