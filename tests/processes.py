"""Ending a process with all that it has started, so that a test that fails leaves nothing behind."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path


def below(pid: int) -> list[int]:
    """All processes below a process, the nearest first; [] where there is no /proc."""
    try:
        text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:  # it has ended meanwhile
        return []
    children = [int(child) for child in text.split()]
    return [*children, *(further for child in children for further in below(child))]


def left_of(pids: Iterable[int], limit_s: float = 30.0) -> list[int]:
    """Return the processes that have not ended within that time; on a busy machine their end takes a while."""
    end_s = time.monotonic() + limit_s
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < end_s:
        time.sleep(0.05)
    return left


def kill_all(pid: int) -> None:
    """End it and all below it. It must be ours, and not yet waited for, so that the number is still its own."""
    for number in (pid, *below(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
