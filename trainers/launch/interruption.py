"""`Interruption`: Ctrl-C and its like, only where they may interrupt, and only once."""

import signal
import threading
from types import FrameType
from typing import Any, Self

from ringsim.console import ENDINGS


class Interrupted(BaseException):
    """The signal `number` came; its exit code, as a shell says it, is 128 + number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interruption:
    """In a `with` block: a signal raises Interrupted after `allow`; before, it waits for that; after `hold` it is late.

    Signals that were ignored before (nohup) still are. Outside of the main thread, which alone gets signals, it does
    nothing.
    """

    def __init__(self) -> None:
        self._allowed = False
        self._kept: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in ENDINGS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def allow(self) -> None:
        """From here on. Raises Interrupted if a signal is waiting."""
        self._allowed = True
        if self._kept is not None:
            self._raise(self._kept)

    def hold(self) -> None:
        """From here on a signal changes nothing: what it would have begun is being done."""
        self._allowed = False

    def _take(self, number: int, _: FrameType | None) -> None:
        if self._allowed:
            self._raise(number)
        self._kept = self._kept or number

    def _raise(self, number: int) -> None:
        self._allowed = False
        raise Interrupted(number)
