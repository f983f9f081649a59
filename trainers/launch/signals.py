"""Signals and the end of a run: Ctrl-C ends it at once; SIGTERM and SIGUSR1 stop it after the step.

`ringsim.console.spawn` handles signals in the starting process, `StopRequest` SIGTERM and SIGUSR1 in the ranks,
`delay_termination` SIGTERM under torchrun. With --ranks only the starting process gets Ctrl-C, and kills the ranks.
srun requires Ctrl-C twice within a second. docs/training.md has the exit codes. Importing this loads no torch.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from ringsim.console import handling, is_under_torchrun, say

if TYPE_CHECKING:
    import torch.distributed as dist

GRACE_S = 5.0  # longer than a rank needs to find the cause, and less than torchrun waits before it sends SIGKILL
POLL_S = 0.02


class StopRequest:
    """The first signal that asks this rank to stop: SIGUSR1 in `catching_sigusr1`, SIGTERM in `catching_sigterm`.

    number: of the signal, or 0. heeded: whether SIGTERM is noted now.
    """

    def __init__(self) -> None:
        self.number = 0
        self.heeded = False

    @contextmanager
    def catching_sigusr1(self) -> Iterator[None]:
        """Note SIGUSR1 in the block, also an earlier one: `spawn` starts a rank with the signal blocked."""
        with handling([signal.SIGUSR1], self._take):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
            yield

    @contextmanager
    def catching_sigterm(self) -> Iterator[None]:
        """Note SIGTERM in the block instead of ending; the program reads `number` after each step."""
        with handling([signal.SIGTERM], self._take):
            self.heeded = True
            try:
                yield
            finally:
                self.heeded = False

    def _take(self, number: int, _: object) -> None:
        self.number = self.number or number


def delay_termination(
    is_failing: Callable[[], bool],
    say_ended: Callable[[], None] = lambda: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Let SIGTERM end this process at once, or, while `is_failing()`, after at most GRACE_S.

    torchrun ends the other ranks as soon as one has died; they need longer to find out which.

    say_ended: called in another thread if SIGTERM ends the process without a failure.
    is_stopping: while true without a failure, the main thread itself ends the process.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # Python calls handlers in the main thread, which may be waiting in C++ for a peer; the number of the signal is
    # written to the pipe at once.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        while signal.SIGTERM not in os.read(reader, 64):
            pass  # another signal, which has a handler of its own
        while is_stopping() and not is_failing():
            time.sleep(POLL_S)
        if not is_failing():
            say_ended()
        end_s = time.monotonic() + GRACE_S
        while is_failing() and time.monotonic() < end_s:
            time.sleep(POLL_S)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="termination", daemon=True).start()


def say_failures_before_the_end(
    say_interrupted: Callable[[], None] = lambda: None, is_stopping: Callable[[], bool] = lambda: False
) -> None:
    """Let this rank print a peer's failure, or the interruption, before torchrun ends it.

    is_stopping: as in `delay_termination`.
    """
    from collectives.runtime import has_failed  # noqa: PLC0415

    if is_under_torchrun():
        delay_termination(has_failed, say_interrupted, is_stopping=is_stopping)


def end_together(message: str, code: int, group: "dist.ProcessGroup") -> int:
    """Let rank 0 print the common message, before a rank ends and torchrun ends the rest."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    if group.rank() == 0:
        say(message)
    try:
        dist.all_reduce(torch.zeros(1), group=group)
    except RuntimeError:  # it was this rank alone, after all
        if group.rank() != 0:
            say(message)
        leave("", code)
    dist.destroy_process_group()
    return code


def leave(message: str, code: int = 1) -> NoReturn:
    """End this rank at once: threads of a broken group may still wait, and would abort an orderly exit."""
    if message:
        say(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
