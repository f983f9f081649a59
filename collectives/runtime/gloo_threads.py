"""`set_gloo_thread_policy`: how the kernel schedules the threads with which Gloo watches its sockets.

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
from typing import Literal, get_args

GLOO_THREAD = "gloo_tcp_loop"
TASKS = Path("/proc/self/task")  # Linux; elsewhere there is no such folder
NAMING_S = 0.5  # how long to wait for a new thread's name, where the transport has such threads at all

GlooThreadPolicy = Literal["batch", "normal"]
GLOO_THREAD_POLICIES: tuple[GlooThreadPolicy, ...] = get_args(GlooThreadPolicy)


def set_gloo_thread_policy(policy: GlooThreadPolicy = "batch") -> int:
    """Set the scheduling policy of all of Gloo's polling threads of this process; returns how many there are.

    Each process group has its own thread, so this is to be called when groups have been made. It needs no privilege.
    Where the system has no such threads, or forbids it, nothing is changed.

    policy: "batch" is SCHED_BATCH, with which a thread does not take a core from one that is running; "normal" is
    SCHED_OTHER, which they have from the beginning. Raises ValueError for any other.

        >>> collectives.set_gloo_thread_policy("batch") > 0
        True
    """
    if policy not in GLOO_THREAD_POLICIES:
        raise ValueError(f"policy {policy!r}: must be one of {', '.join(GLOO_THREAD_POLICIES)}")
    return _set_policy(_gloo_threads(), policy)


@contextmanager
def batch_policy_for_new_groups() -> Iterator[None]:
    """Set the policy "batch" for the threads of groups that are made meanwhile; others stay as they are."""
    before = _gloo_threads()
    yield
    _set_policy(_appeared_since(before), "batch")


def have_gloo_threads_batch_policy() -> bool:
    """Whether this process has such threads, and all of them are SCHED_BATCH."""
    policies = set()
    for thread in _gloo_threads():
        with suppress(OSError):
            policies.add(os.sched_getscheduler(thread))
    return bool(policies) and policies == {os.SCHED_BATCH}  # other systems than Linux do not know the name


def _appeared_since(before: set[int]) -> set[int]:
    """Return the threads that are new.

    A group has one when it is made, but it may take a moment to give itself its name.
    """
    deadline = time.monotonic() + NAMING_S
    while not (new := _gloo_threads() - before) and TASKS.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    return new


def _gloo_threads() -> set[int]:
    """None where the system cannot be asked for them, or has no such policies."""
    if not hasattr(os, "SCHED_BATCH"):
        return set()
    return {int(task.name) for task in TASKS.glob("*") if _name(task) == GLOO_THREAD}


def _set_policy(threads: set[int], policy: GlooThreadPolicy) -> int:
    num_set = 0
    for thread in threads:
        with suppress(OSError):  # it has ended meanwhile, or the system forbids it
            os.sched_setscheduler(thread, os.SCHED_BATCH if policy == "batch" else os.SCHED_OTHER, os.sched_param(0))
            num_set += 1
    return num_set


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended meanwhile
        return ""
