"""The watch over queues: it goes on, however many groups begin meanwhile."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from collectives.runtime import queue as queues

LIMIT_S = 1.0


class Watched:
    """A queue in which nothing is stuck."""

    def fail_if_stuck(self) -> None:
        """Do nothing."""


def test_groups_may_begin_while_the_watch_looks() -> None:
    """A look at all queues does not fail when one is added to them at that moment."""
    interval_s, is_over = sys.getswitchinterval(), Event()
    sys.setswitchinterval(1e-6)  # let threads take turns as often as possible

    def look() -> None:
        while not is_over.is_set():
            queues._look_at_all()

    watched, end_s = [], time.monotonic() + LIMIT_S
    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(look)
        try:
            while time.monotonic() < end_s and len(watched) < 20_000 and not looking.done():
                watched.append(Watched())
                queues._watch_over(watched[-1])  # type: ignore[arg-type]
        finally:
            is_over.set()
            sys.setswitchinterval(interval_s)
    assert looking.exception() is None
