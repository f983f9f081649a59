"""Signals that end a program: each as Ctrl-C does, and only once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDINGS = tuple(  # Windows has no SIGHUP
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextmanager
def ended_once() -> Iterator[None]:
    """The first Ctrl-C, SIGTERM or SIGHUP raises KeyboardInterrupt in the block; those after it do nothing.

    So what tidies up after Ctrl-C does so after the others too, and is not stopped by a second one. What is ignored
    (nohup) stays so. For the main thread: Python lets no other handle signals.
    """
    handlers = {number: signal.getsignal(number) for number in ENDINGS}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def end(*_: object) -> None:
        for number in before:
            signal.signal(number, _do_nothing)  # not SIG_IGN, which processes started from now on would inherit
        raise KeyboardInterrupt

    try:
        for number in before:
            signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _do_nothing(*_: object) -> None:
    pass
