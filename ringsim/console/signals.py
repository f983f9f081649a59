"""Signals that end a program: each as Ctrl-C does, and only once."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, object], None]) -> Iterator[None]:
    """Call `handler` with the number and the frame when one of these signals comes within the block.

    Signals that were ignored before (nohup) stay ignored. Outside of the main thread, the only one that Python lets
    handle signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in numbers}
    before = {number: known for number, known in handlers.items() if known not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@contextmanager
def ended_once() -> Iterator[None]:
    """Raise KeyboardInterrupt, with the signal's number, in the block at the first Ctrl-C, SIGTERM or SIGHUP.

    Those after it are ignored.

    So what tidies up after Ctrl-C does so after the others too, and is not stopped by a second one.
    """
    is_ending = False

    def end(number: int, _: object) -> None:
        nonlocal is_ending
        if not is_ending:
            is_ending = True
            raise KeyboardInterrupt(number)

    with handling(ENDINGS, end):
        yield


@contextmanager
def endings_noted(*others: int) -> Iterator[list[int]]:
    """Yield a list to which the endings, and other signals, that come within the block are added.

    They do nothing else. For what no exception may interrupt, such as starting a process that must be ended later.
    """
    came: list[int] = []
    with handling({*ENDINGS, *others}, lambda number, _: came.append(number)):
        yield came
