"""`calm_polling`: keep the threads with which Gloo watches its sockets from taking cores that its callers need.

Such a thread, woken by a message that comes while its own process is writing to the same connection, finds that locked
and asks again and again (gloo/transport/tcp/pair.cc, handleEvents). Where it was given the writer's core, the writer
cannot go on, and unlock, until the kernel takes the core away again, a millisecond or more later. As SCHED_BATCH it
still gets a core that is idle at once, but none that is in use (sched(7)): two to three times as fast with more ranks
than cores, see docs/collectives.md.
"""

import os
from pathlib import Path

GLOO_THREAD = "gloo_tcp_loop"
TASKS = Path("/proc/self/task")  # Linux; elsewhere there is no such folder


def calm_polling() -> int:
    """Make all of Gloo's polling threads of this process SCHED_BATCH; returns how many there are.

    Each process group has its own, so to be called when groups have been made. It needs no privilege. Where the system
    has no such threads, or does not let us, nothing is changed.
    """
    threads = _gloo_threads()
    for thread in threads:
        try:
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        except OSError:
            return 0
    return len(threads)


def is_calm() -> bool:
    """Whether this process has such threads, and all of them are SCHED_BATCH."""
    policies = [os.sched_getscheduler(thread) for thread in _gloo_threads()]
    return bool(policies) and set(policies) == {os.SCHED_BATCH}


def _gloo_threads() -> list[int]:
    return [int(task.name) for task in TASKS.glob("*") if _name(task) == GLOO_THREAD]


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended meanwhile
        return ""
