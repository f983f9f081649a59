"""`Ranks`: processes of one job, forked by a zygote that all jobs of this process share."""

import atexit
import datetime
import faulthandler
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 120.0
END_LIMIT_S = 60.0
LOG_LINES = 100
News = tuple[str, int, int]


class Nursery:
    """The zygote and what it tells of its ranks; made when the first ranks are needed.

    codes: exit codes of the ranks that have ended, by process id; a rank that is stopped is in `stopped`.
    """

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self._control, theirs = Pipe()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-m", "tests.fuzz.zygote", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, env=environment)
        theirs.close()
        self.codes: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.is_closed = False

    def fork(self, log: Path, target: Callable[..., object], *arguments: object) -> tuple[int, Connection]:
        """Start `target(pipe, *arguments)` in a process; its id, and our end of the pipe."""
        ours, theirs = Pipe()
        self._control.send(("fork", str(log), target, *arguments))
        send_handle(self._control, theirs.fileno(), None)
        theirs.close()
        while True:
            if not self._control.poll(START_LIMIT_S):
                raise AssertionError(f"hangs: the process that forks ranks does not answer within {START_LIMIT_S:g} s")
            kind, pid, code = self._control.recv()
            if kind == "started":
                # The system gives numbers of processes again: what is known is of an earlier one.
                self.codes.pop(pid, None)
                self.stopped.discard(pid)
                return pid, ours
            self._note(kind, pid, code)

    def _note(self, kind: str, pid: int, code: int) -> None:
        if kind == "ended":
            self.codes[pid] = code
            self.stopped.discard(pid)
        else:
            self.stopped.add(pid)

    def listen(self, limit_s: float, *pipes: Connection) -> list[Connection]:
        """Wait for news of ranks, which are noted, or for one of the pipes; those of them that are ready."""
        ready = wait([self._control, *pipes], max(limit_s, 0))
        if self._control in ready:
            self._note(*self._control.recv())
        return [pipe for pipe in pipes if pipe in ready]

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a rank, if it still is."""
        self.stopped.discard(pid)
        self._control.send(("signal", pid, number))

    def close(self) -> None:
        """End the zygote, and with it all ranks that are left."""
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
    """End all ranks."""
    while _NURSERIES:
        _NURSERIES.pop().close()


@dataclass(frozen=True)
class Answer:
    """What a task returned on a rank, or its traceback."""

    good: bool
    value: Any


@dataclass(frozen=True)
class Leaving:
    """What a task returns to let its rank leave: `value` is the answer, given before.

    how: "return" from the program, "sys.exit", "destroy" the process groups and sys.exit, "os._exit", or "raise".
    """

    value: Any
    how: str
    code: int = 0

    def leave(self) -> None:
        """The rank's last act."""
        if self.how == "raise":
            raise ZeroDivisionError("a program's own error")
        if self.how == "os._exit":
            os._exit(self.code)
        if self.how == "destroy":
            import torch.distributed as dist

            dist.destroy_process_group()
        if self.how != "return":
            sys.exit(self.code)

    @property
    def exit_code(self) -> int:
        """That of its process."""
        return 1 if self.how == "raise" else 0 if self.how == "return" else self.code


class Ranks:
    """`num_ranks` processes in one process group on Gloo, which wait for tasks.

    timeout_s: the group's.
    """

    _jobs = itertools.count()

    def __init__(self, num_ranks: int, timeout_s: float) -> None:
        self.num_ranks = num_ranks
        self._home = nursery()
        self._folder = Path(self._home.folder.name) / f"job{next(self._jobs)}"
        self._folder.mkdir()
        self.pids: list[int] = []
        self.pipes: list[Connection] = []
        try:
            for rank in range(num_ranks):
                arguments = (rank, num_ranks, str(self._folder / "rendezvous"), timeout_s)
                pid, pipe = self._home.fork(self._log(rank), serve, *arguments)
                self.pids.append(pid)
                self.pipes.append(pipe)
            if len(self.answers(range(num_ranks), START_LIMIT_S)) < num_ranks:
                raise AssertionError(f"the ranks did not start: {self.remains()}")
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.log"

    def start(self, task: Callable[..., Any], *arguments: Any, ranks: Sequence[int] | None = None) -> None:
        """Let ranks, by default all, begin `task(*arguments)`."""
        for rank in range(self.num_ranks) if ranks is None else ranks:
            self.pipes[rank].send((task, arguments))

    def answers(
        self,
        ranks: Sequence[int],
        limit_s: float,
    ) -> dict[int, Answer]:
        """By rank, what became of the task; those that end, or say nothing in time, are missing."""
        waiting = {self.pipes[rank]: rank for rank in ranks}
        answers: dict[int, Answer] = {}
        end_s = time.monotonic() + limit_s
        while waiting and time.monotonic() < end_s:
            for pipe in self._home.listen(end_s - time.monotonic(), *waiting):
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except (EOFError, ConnectionResetError):
                    continue
        return answers

    def has_ended(self, rank: int) -> bool:
        """Whether its process is over."""
        return self.pids[rank] in self._home.codes

    def is_stopped(self, rank: int) -> bool:
        """Whether it was by a signal."""
        return self.pids[rank] in self._home.stopped

    def signal(self, rank: int, number: int) -> None:
        """Send it a signal."""
        self._home.signal(self.pids[rank], number)

    def codes(self, limit_s: float = END_LIMIT_S) -> list[int | None]:
        """The exit codes; None for ranks that have not ended by then."""
        end_s = time.monotonic() + limit_s
        while any(pid not in self._home.codes for pid in self.pids) and time.monotonic() < end_s:
            self._home.listen(end_s - time.monotonic())
        return [self._home.codes.get(pid) for pid in self.pids]

    def remains(self, first: Collection[int] = ()) -> str:
        """Return what is known of each rank: its exit code, or where it is, and what it wrote last to standard error.

        first: the ranks with which to begin, as a report is cut off somewhere.
        """
        for rank in range(self.num_ranks):
            self.signal(rank, signal.SIGUSR1)
        codes, lines = self.codes(limit_s=1), []
        for rank, code in sorted(enumerate(codes), key=lambda known: known[0] not in first):
            log = self._log(rank)
            text = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
            lines.append(f"rank {rank}: {'runs' if code is None else f'exit code {code}'}")
            lines += [f"    {line}" for line in text]
        return "\n".join(lines)

    @property
    def are_gone(self) -> bool:
        """Whether they have ended with the process that forks them."""
        return self._home.is_closed

    def end(self) -> None:
        """Kill all of them."""
        if self.are_gone:
            return
        for rank, pipe in enumerate(self.pipes):
            self.signal(rank, signal.SIGKILL)
            pipe.close()
        if None in self.codes():
            raise AssertionError(f"ranks outlive SIGKILL: {self.codes(0)}")


class KeptRanks:
    """Ranks that are kept for many cases of an attack; then there are fresh ones.

    num_cases: that the same ranks may have.
    """

    def __init__(self, num_ranks: int, timeout_s: float, num_cases: int) -> None:
        self._num_ranks, self._timeout_s, self._num_cases = num_ranks, timeout_s, num_cases
        self._ranks: Ranks | None = None
        self._cases_left = 0

    def for_a_case(self) -> Ranks:
        """Those for the next case."""
        if self._ranks is None or self._ranks.are_gone or not self._cases_left:
            self.end()
            self._ranks, self._cases_left = Ranks(self._num_ranks, self._timeout_s), self._num_cases
        self._cases_left -= 1
        return self._ranks

    def end(self) -> None:
        """Kill them, as after a case that has broken something."""
        if self._ranks is not None:
            self._ranks.end()
            self._ranks = None


def serve(orders: Connection, rank: int, num_ranks: int, rendezvous: str, timeout_s: float) -> None:
    """In a rank's process: join the group, then do one task after the other."""
    import torch.distributed as dist

    import collectives

    faulthandler.register(signal.SIGUSR1)  # see `remains`
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=num_ranks,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    collectives.set_gloo_thread_policy()  # ranks share cores here
    orders.send(Answer(True, None))
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


def group_on(backend: str, timeout_s: float) -> Any:
    """In a rank: the group of all ranks, on Gloo or on another backend."""
    import torch.distributed as dist

    if backend == "gloo":
        return dist.group.WORLD
    return dist.new_group(timeout=datetime.timedelta(seconds=timeout_s), backend=backend)  # else it is half an hour
