"""`Lane`: the collectives of one process group, one after the other, in the order in which they were called."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, get_debug_level

from collectives.agreement import Agreement
from collectives.errors import CollectiveError
from collectives.execute import resolve
from collectives.work import Work


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

    def close(self) -> None:
        """End the thread, when what was given is done; nothing may be given any more."""
        self._thread.shutdown()

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


def close_lane(group: dist.ProcessGroup) -> None:
    """Wait for what is under way in the lane of `group`, if it has one, and end its thread."""
    lane = _LANES.pop(group, None)
    if lane is not None:
        lane.close()
