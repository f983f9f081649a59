"""Ending a process with all that it has started, so that a test that fails leaves nothing behind."""

import contextlib
import os
import signal
from pathlib import Path


def below(pid: int) -> list[int]:
    """All processes below a process, the nearest first; [] where there is no /proc."""
    try:
        text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:  # it has ended meanwhile
        return []
    children = [int(child) for child in text.split()]
    return [*children, *(further for child in children for further in below(child))]


def kill_all(pid: int) -> None:
    """End it and all below it. It must be ours, and not yet waited for, so that the number is still its own."""
    for number in (pid, *below(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
