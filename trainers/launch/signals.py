"""The signals of a run: Ctrl-C ends it at once; SIGTERM and SIGUSR1 stop it after the step, with a checkpoint.

                     Ctrl-C              SIGTERM                    SIGUSR1
trainers --ranks N   ends, code 130 [1]  stops, code 143 [2]        stops, code 138 [2]
torchrun             ends, code 1 [3]    stops, code 1 [3]          stops, code 1, if torchrun handles it [4]
srun, one process    ends, code 130 [5]  stops, code 143            stops, code 138

"ends": at once, and the command that resumes is said. "stops": all ranks, whichever of them gets the signal, after the
same step and with a checkpoint.
[1] The ranks do not get Ctrl-C; the starting process kills them.
[2] The starting process passes the signal on to its ranks.
[3] torchrun passes the signal on, and has exit code 1 whatever those of the ranks are.
[4] With --signals-to-handle; otherwise SIGUSR1 ends torchrun alone. A rank that gets it stops in any case.
[5] srun itself wants Ctrl-C twice within a second.

SIGHUP does as Ctrl-C. Before the first step and after the last one SIGTERM ends a process at once, with the same exit
code, and SIGUSR1 waits for the first step. Under torchrun, which sends SIGTERM to all ranks as soon as one has failed,
a rank that has lost a peer first says who failed.

`Interruption` is Ctrl-C in the starting process, `StopRequest` SIGTERM and SIGUSR1 there and in the ranks, and
`delay_termination` SIGTERM in a rank of torchrun. Importing this loads no torch.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Self

from ringsim.console import ENDINGS, handling

GRACE_S = 5.0  # longer than a rank needs to find the cause, and less than torchrun waits before it sends SIGKILL
POLL_S = 0.02


class Interrupted(BaseException):
    """The signal `number` came; its exit code, as a shell says it, is 128 + number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interruption(ExitStack):
    """In a `with` block: raise Interrupted once, for the first Ctrl-C, SIGTERM or SIGHUP, after `allow`.

    A signal that comes before `allow` waits for it; one after `hold` changes nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._allowed = False
        self._waiting: int | None = None

    def __enter__(self) -> Self:
        self.enter_context(handling(ENDINGS, self._take))
        return self

    def allow(self) -> None:
        """Let signals interrupt from here on. Raises Interrupted if one is waiting."""
        self._allowed = True
        if self._waiting is not None:
            self._raise(self._waiting)

    def hold(self) -> None:
        """Ignore signals from here on: what they would have begun is being done."""
        self._allowed = False

    def _take(self, number: int, _: object) -> None:
        if self._allowed:
            self._raise(number)
        self._waiting = self._waiting or number

    def _raise(self, number: int) -> None:
        self._allowed = False
        raise Interrupted(number)


class StopRequest(ExitStack):
    """In a `with` block SIGUSR1 is noted; in `heeding`, SIGTERM too. `number` is that of the first that came, else 0.

    heeded: whether SIGTERM is noted now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.heeded = False
        self._processes: Sequence[BaseProcess] = ()

    def __enter__(self) -> Self:
        self.enter_context(handling([signal.SIGUSR1], self._take))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # `spawn` begins a rank with the signal blocked
        return self

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """Note SIGTERM in the block: the program looks at `number` after each step, so that it need not end at once."""
        with handling([signal.SIGTERM], self._take):
            self.heeded = True
            try:
                yield
            finally:
                self.heeded = False

    @contextmanager
    def passing_on(self, processes: Sequence[BaseProcess]) -> Iterator[None]:
        """Pass on to these ranks, in the block, what this process gets or has got before."""
        self._processes = processes
        with self.heeding():
            if self.number:
                self._pass_on(self.number)
            try:
                yield
            finally:
                self._processes = ()

    def is_cause_of(self, codes: Sequence[int]) -> bool:
        """Return whether ranks with these exit codes, -n by signal n, have ended for what they were passed."""
        return bool(self.number and codes) and all(code in (128 + self.number, -self.number) for code in codes)

    def _take(self, number: int, _: object) -> None:
        self.number = self.number or number
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for process in self._processes:
            if process.exitcode is None and process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)


@contextmanager
def blocking(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Start processes in the block that do not get these signals, such as Ctrl-C, which goes to all of a terminal.

    A rank leaves Ctrl-C to its parent, or it would end in a traceback, or not at all.
    """
    resource_tracker.ensure_running()  # by itself it would start with the first rank, and unblock the signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def is_under_torchrun(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun has started this process, and so will end it."""
    return "TORCHELASTIC_RUN_ID" in environment


def delay_termination(
    is_failing: Callable[[], bool],
    say_ended: Callable[[], None] = lambda: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """From now on let SIGTERM end this process at once, or, while `is_failing()`, after at most GRACE_S.

    torchrun ends the ranks that are left within a tenth of a second after one has died. To find out which rank was the
    first to fail takes these a little longer, so without the delay nobody would say it.

    say_ended: called, in another thread, if SIGTERM ends the process while nothing is failing.
    is_stopping: while this is so and nothing is failing, the process itself sees to its end, in its main thread.

    To be called in the main thread.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # What Python calls for a signal it calls in the main thread, which may be waiting in C++ for a peer. The number of
    # the signal, though, is written to the pipe at once.
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
