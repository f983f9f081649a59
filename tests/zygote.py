"""A process that has imported torch and forks others on request: to import takes seconds, to fork milliseconds.

What it forks does tasks until it is told to leave, and may then return from here to the end of the program, so that its
interpreter ends as that of any program does: what goes wrong there is a fault as well. Run as `python -m tests.zygote`;
`tests.forked` is the other end.
"""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import current_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)


class Zygote:
    """Serves orders ("fork" with a pipe and a file for stderr, "signal" a process) and tells what becomes of them."""

    def __init__(self, control: Connection) -> None:
        self._control = control
        self._forked: set[int] = set()
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> Connection | None:
        """In a forked process: the pipe through which it gets its tasks; None when nobody gives orders any more."""
        try:
            while True:
                ready = wait([self._control, self._woken])
                if self._woken in ready:
                    os.read(self._woken, 1000)
                    for news in self._news():
                        self._control.send(news)
                if self._control in ready:
                    kind, *order = self._control.recv()
                    if kind == "signal":
                        self._signal(*order)
                    elif (tasks := self._fork(*order)) is not None:
                        return tasks
        except (EOFError, OSError):  # the other end is closed
            self._end()
            return None

    def _end(self) -> None:
        """Kill all forked processes, and wait until they are gone."""
        for pid in self._forked:
            os.kill(pid, signal.SIGKILL)
        for pid in self._forked:
            os.waitpid(pid, 0)

    def _news(self) -> Iterator[tuple[str, int, int]]:
        """Processes that have ended, with their exit codes, or been stopped."""
        while self._forked:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                yield "stopped", pid, 0
            else:
                self._forked.discard(pid)
                yield "ended", pid, os.waitstatus_to_exitcode(status)

    def _signal(self, pid: int, number: int) -> None:
        if pid in self._forked:  # not yet reaped, so the number is still its own
            os.kill(pid, number)

    def _fork(self, log: str) -> Connection | None:
        pipe, parent = recv_handle(self._control), os.getpid()
        pid = os.fork()
        if pid:
            os.close(pipe)
            self._forked.add(pid)
            self._control.send(("started", pid, 0))
            return None
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        return Connection(pipe)


def main() -> None:
    """Fork processes until the other end is closed; in such a process, do its tasks."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # whoever started us ends us; a Ctrl-C goes to all of a terminal
    import hypothesis  # noqa: F401  tests import it, and what follows
    import pytest  # noqa: F401
    import torch._dynamo  # as an optimizer does

    import collectives  # noqa: F401
    import trainers.cli.group
    import trainers.loop.trainer  # noqa: F401
    from tests.forked import do_tasks

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # else a forked process that looks for garbage copies the pages of all objects, which takes a second
    control = Connection(int(sys.argv[1]))
    current_process().authkey = control.recv_bytes()  # without it the two could not send each other tensors
    tasks = Zygote(control).serve()
    if tasks is not None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        do_tasks(tasks)


if __name__ == "__main__":
    main()
