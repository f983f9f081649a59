"""The watch over queues: it goes on, however many groups begin meanwhile."""

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from collectives.runtime import queue as queues

LIMIT_S = 1.0


class Watched:
    """A queue in which nothing is stuck."""

    def fail_if_stuck(self) -> None:
        """Do nothing."""


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("hurried_threads")
def test_groups_may_begin_while_the_watch_looks() -> None:
    """A look at all queues does not fail when one is added to them at that moment."""
    errors: list[RuntimeError] = []
    is_over = threading.Event()

    def look() -> None:
        try:
            while not is_over.is_set():
                queues._look_at_all()
        except RuntimeError as error:
            errors.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    watched = []
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s and len(watched) < 20_000 and not errors:
        watched.append(Watched())
        queues._watch_over(watched[-1])  # type: ignore[arg-type]
    is_over.set()
    looking.join()
    assert not errors
