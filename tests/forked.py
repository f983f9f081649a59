"""`Forked`: a process that has loaded torch and does tasks, forked by a zygote that all of this process share."""

import atexit
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing import Pipe, current_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tests.processes import ROOT, environment

START_LIMIT_S = 120.0
END_LIMIT_S = 60.0


class Nursery:
    """The zygote and what it tells of its processes.

    codes: exit codes of those that have ended, by process id; one that is stopped is in `stopped`.
    """

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="forked-")
        self._control, theirs = Pipe()
        # One thread, as torchrun has it with several ranks on a host; a process without others can be forked safely.
        ours = environment() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "tests.zygote", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, env=ours)
        theirs.close()
        self._control.send_bytes(current_process().authkey)
        self.codes: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.is_closed = False
        self._numbers = count()

    def new_folder(self) -> Path:
        """Make a folder for one use of forked processes; it is removed at the end."""
        folder = Path(self.folder.name) / str(next(self._numbers))
        folder.mkdir()
        return folder

    def fork(self, log: Path) -> "Forked":
        """Start a process that waits for tasks; its stderr goes to the file."""
        ours, theirs = Pipe()
        self._control.send(("fork", str(log)))
        send_handle(self._control, theirs.fileno(), None)
        theirs.close()
        while True:
            if not self._control.poll(START_LIMIT_S):
                raise AssertionError(f"hangs: the process that forks others does not answer in {START_LIMIT_S:g} s")
            kind, pid, code = self._control.recv()
            if kind == "started":
                # The system gives numbers of processes again: what is known is of an earlier one.
                self.codes.pop(pid, None)
                self.stopped.discard(pid)
                return Forked(self, pid, ours, log)
            self._note(kind, pid, code)

    def _note(self, kind: str, pid: int, code: int) -> None:
        if kind == "ended":
            self.codes[pid] = code
            self.stopped.discard(pid)
        else:
            self.stopped.add(pid)

    def listen(self, limit_s: float, *pipes: Connection) -> list[Connection]:
        """Wait for news of processes, which are noted, or for one of the pipes; those of them that are ready."""
        ready = wait([self._control, *pipes], max(limit_s, 0))
        if self._control in ready:
            self._note(*self._control.recv())
        return [pipe for pipe in pipes if pipe in ready]

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process, if it still is."""
        self.stopped.discard(pid)
        self._control.send(("signal", pid, number))

    def close(self) -> None:
        """End the zygote, and with it all processes that are left."""
        self.is_closed = True
        self._control.close()
        try:
            self._process.wait(END_LIMIT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self.folder.cleanup()


_NURSERIES: list[Nursery] = []  # one, or none


def nursery() -> Nursery:
    """The one of this process."""
    if not _NURSERIES:
        _NURSERIES.append(Nursery())
    return _NURSERIES[0]


@atexit.register
def close() -> None:
    """End all forked processes."""
    while _NURSERIES:
        _NURSERIES.pop().close()


class Answer(NamedTuple):
    """The result of a task, or its traceback."""

    good: bool
    value: Any


@dataclass(frozen=True)
class Leaving:
    """The result of a task that lets its process leave: `value` is the answer, given before.

    how: "return" from the program, "sys.exit", "destroy" the process groups and sys.exit, "os._exit", or "raise".
    """

    value: Any
    how: str
    code: int = 0

    def leave(self) -> None:
        """The process's last act."""
        if self.how == "raise":
            raise ZeroDivisionError("a program's own error")
        if self.how == "os._exit":
            os._exit(self.code)
        gc.unfreeze()  # the end of an interpreter looks at all objects
        if self.how == "destroy":
            import torch.distributed as dist

            dist.destroy_process_group()
        if self.how != "return":
            sys.exit(self.code)

    @property
    def exit_code(self) -> int:
        """Return the exit code of its process."""
        return 1 if self.how == "raise" else 0 if self.how == "return" else self.code


@dataclass(frozen=True, eq=False)
class Forked:
    """One forked process, which does one task after the other.

    log: what it writes to standard error.
    """

    home: Nursery
    pid: int
    pipe: Connection
    log: Path

    def start(self, task: Callable[..., Any], *arguments: Any) -> None:
        """Let it begin `task(*arguments)`; `answers` waits for the end. task: at the top level of a module."""
        self.pipe.send((task, arguments))

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.home.signal(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether the process is over."""
        return self.pid in self.home.codes

    @property
    def is_stopped(self) -> bool:
        """Whether it was by a signal."""
        return self.pid in self.home.stopped

    def wait(self, limit_s: float) -> int | None:
        """Return the exit code; None if it has not ended by then."""
        return codes_of([self], limit_s)[0]


def answers_of(processes: Sequence[Forked], limit_s: float) -> dict[Forked, Answer]:
    """Return the answer of each process; those that end, or say nothing in time, are missing."""
    waiting = {process.pipe: process for process in processes}
    answers: dict[Forked, Answer] = {}
    end_s = time.monotonic() + limit_s
    while waiting and time.monotonic() < end_s:
        for pipe in processes[0].home.listen(end_s - time.monotonic(), *waiting):
            process = waiting.pop(pipe)
            try:
                answers[process] = pipe.recv()
            except (EOFError, ConnectionResetError):
                continue
    return answers


def codes_of(processes: Sequence[Forked], limit_s: float = END_LIMIT_S) -> list[int | None]:
    """The exit codes; None for processes that have not ended by then."""
    end_s = time.monotonic() + limit_s
    while not all(process.has_ended for process in processes) and time.monotonic() < end_s:
        processes[0].home.listen(end_s - time.monotonic())
    return [process.home.codes.get(process.pid) for process in processes]


# What follows runs in forked processes.


def do_tasks(orders: Connection) -> None:
    """Do one task after the other, until one of them lets the process leave."""
    faulthandler.register(signal.SIGUSR1)  # see `Ranks.remains`
    while True:
        try:
            task, arguments = orders.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = Answer(True, task(*arguments))
        except Exception:  # whoever gave the task judges
            answer = Answer(False, traceback.format_exc())
        if isinstance(answer.value, Leaving):
            orders.send(Answer(True, answer.value.value))
            answer.value.leave()
            return
        orders.send(answer)


def forget_signals() -> None:
    """Handle signals as a process does that is not forked."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


def be_a_program(program: Callable[..., object], *arguments: Any) -> NoReturn:
    """Do as a program of its own does, with signals as by default, but end at once: without an interpreter's end."""
    faulthandler.unregister(signal.SIGUSR1)
    gc.unfreeze()
    forget_signals()
    code = 1
    try:
        program(*arguments)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
