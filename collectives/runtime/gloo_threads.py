"""`calm_polling`: keep the threads with which Gloo watches its sockets from taking cores that its callers need.

Such a thread, woken by a message that comes while its own process is writing to the same connection, finds that locked
and asks again and again (gloo/transport/tcp/pair.cc, handleEvents). Where it was given the writer's core, the writer
cannot go on, and unlock, until the kernel takes the core away again, a millisecond or more later. As SCHED_BATCH it
still gets a core that is idle at once, but none that is in use (sched(7)): see docs/collectives.md for what that gains.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

GLOO_THREAD = "gloo_tcp_loop"
TASKS = Path("/proc/self/task")  # Linux; elsewhere there is no such folder
NAMING_S = 0.5  # how long to wait for a new thread's name, where the transport has such threads at all


def calm_polling(calm: bool = True) -> int:
    """Make all of Gloo's polling threads of this process SCHED_BATCH; returns how many.

    Each process group has its own, so to be called when groups have been made. It needs no privilege. Where the system
    has no such threads, or forbids it, nothing is changed.

    calm: False puts them back to what they were, SCHED_OTHER.
    """
    return _tell(_gloo_threads(), calm)


@contextmanager
def calm_new_polling() -> Iterator[None]:
    """Calm the threads of groups that are made meanwhile; others stay as the program has left them."""
    before = _gloo_threads()
    yield
    _tell(_appeared_since(before), calm=True)


def is_calm() -> bool:
    """Whether this process has such threads, and all of them are SCHED_BATCH."""
    policies = set()
    for thread in _gloo_threads():
        with suppress(OSError):
            policies.add(os.sched_getscheduler(thread))
    return policies == {os.SCHED_BATCH}


def _appeared_since(before: set[int]) -> set[int]:
    """The threads that are new. A group has one when it is made, but it may take a moment to give itself its name."""
    deadline = time.monotonic() + NAMING_S
    while not (new := _gloo_threads() - before) and TASKS.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    return new


def _gloo_threads() -> set[int]:
    return {int(task.name) for task in TASKS.glob("*") if _name(task) == GLOO_THREAD}


def _tell(threads: set[int], calm: bool) -> int:
    changed = 0
    for thread in threads:
        with suppress(OSError):  # it has ended meanwhile, or the system forbids it
            os.sched_setscheduler(thread, os.SCHED_BATCH if calm else os.SCHED_OTHER, os.sched_param(0))
            changed += 1
    return changed


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended meanwhile
        return ""
