"""`delay_termination`: under torchrun, a rank that lost a peer says so before SIGTERM ends it.

torchrun ends the ranks that are left within a tenth of a second after one has died. To find out which rank was the
first to fail takes these a little longer, so without a delay nobody would say it.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping

GRACE_S = 5.0  # longer than a rank needs to find the cause, and less than torchrun waits before it sends SIGKILL
POLL_S = 0.02


def is_under_torchrun(environment: Mapping[str, str]) -> bool:
    """Whether torchrun has started this process, and so will end it."""
    return "TORCHELASTIC_RUN_ID" in environment


def delay_termination(
    is_failing: Callable[[], bool],
    say_ended: Callable[[], None] = lambda: None,
    grace_s: float = GRACE_S,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """From now on SIGTERM ends this process at once, or, while `is_failing()`, after at most `grace_s`.

    say_ended: called, in another thread, if SIGTERM ends the process while nothing is failing.
    is_stopping: while this is so and nothing is failing, the process itself sees to its end, in its main thread.

    So a process that fails has the time to say why, and to end by itself. To be called in the main thread.
    """
    if not hasattr(os, "set_blocking"):
        return  # Windows: a pipe cannot be told of signals there
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # What Python calls for a signal it calls in the main thread, which may be waiting in C++ for a peer. The number of
    # the signal, though, is written to the pipe at once.
    signal.signal(signal.SIGTERM, _do_nothing)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(
        target=_watch, args=(reader, is_failing, say_ended, grace_s, is_stopping), name="termination", daemon=True
    ).start()


def _watch(
    reader: int,
    is_failing: Callable[[], bool],
    say_ended: Callable[[], None],
    grace_s: float,
    is_stopping: Callable[[], bool],
) -> None:
    while signal.SIGTERM not in os.read(reader, 64):
        pass  # another signal, which has a handler of its own
    while is_stopping() and not is_failing():
        time.sleep(POLL_S)
    if not is_failing():
        say_ended()
    end_s = time.monotonic() + grace_s
    while is_failing() and time.monotonic() < end_s:
        time.sleep(POLL_S)
    os._exit(128 + signal.SIGTERM)


def _do_nothing(*_: object) -> None:
    pass
