"""`StopRequest`: SIGTERM and SIGUSR1 ask a run to stop after the present step, in place of ending it at once."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from typing import Any, Self

NOTICE: signal.Signals | None = getattr(signal, "SIGUSR1", None)  # Windows has none


class StopRequest:
    """In a `with` block SIGUSR1 is noted; in `heeding`, SIGTERM too. `number` is that of the first that came, else 0.

    Signals that are ignored stay so. Outside of the main thread, which alone gets signals, it does nothing.
    """

    def __init__(self) -> None:
        self.number = 0
        self.heeded = False  # whether SIGTERM is noted now
        self._processes: Sequence[BaseProcess] = ()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if NOTICE is not None:
            self._note(NOTICE)
        unblock_notice()
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._before):
            self._restore(number)

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """Within it the program looks at `number` after each step, so that SIGTERM need not end it."""
        self._note(signal.SIGTERM)
        self.heeded = True
        try:
            yield
        finally:
            self.heeded = False
            self._restore(signal.SIGTERM)

    @contextmanager
    def passing_on(self, processes: Sequence[BaseProcess]) -> Iterator[None]:
        """Within it the ranks that were started here get what this process gets, or has got before."""
        self._processes = processes
        with self.heeding():
            if self.number:
                self._pass_on(self.number)
            try:
                yield
            finally:
                self._processes = ()

    def is_cause_of(self, codes: Sequence[int]) -> bool:
        """Whether ranks with these exit codes, -n by signal n, have ended for what they were passed."""
        return bool(self.number and codes) and all(code in (128 + self.number, -self.number) for code in codes)

    def _note(self, number: signal.Signals) -> None:
        if threading.current_thread() is not threading.main_thread() or number in self._before:
            return
        before = signal.getsignal(number)
        if before != signal.SIG_IGN:
            self._before[number] = before
            signal.signal(number, self._take)

    def _restore(self, number: signal.Signals) -> None:
        if number in self._before:
            signal.signal(number, self._before.pop(number))

    def _take(self, number: int, _: object) -> None:
        self.number = self.number or number
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for process in self._processes:
            if process.exitcode is None and process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)


def unblock_notice() -> None:
    """Get a SIGUSR1 that has come since `spawn` began this process, which it does with the signal blocked."""
    if NOTICE is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {NOTICE})
