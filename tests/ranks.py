"""`Ranks`: forked processes in one process group; `RankPool`: those that are kept for many cases."""

import datetime
import itertools
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.forked import END_LIMIT_S, START_LIMIT_S, Answer, Nursery, answers_of, be_a_program, codes_of, nursery

LOG_LINES = 100


class Ranks:
    """`num_ranks` processes in one process group, which wait for tasks.

    timeout_s: the group's, after which a rank gives up waiting for another.
    """

    def __init__(self, num_ranks: int, timeout_s: float, backend: str = "gloo", home: Nursery | None = None) -> None:
        self.num_ranks = num_ranks
        self._home = home or nursery()
        folder = self._home.new_folder()
        self.processes = [self._home.fork(folder / f"rank{rank}.log") for rank in range(num_ranks)]
        try:
            # All must be there first: to connect to one another they have only the group's own timeout.
            self._begin(_be_there)
            for rank, process in enumerate(self.processes):
                process.start(_join, rank, num_ranks, str(folder / "rendezvous"), timeout_s, backend)
            self._require_answers()
        except BaseException:
            self.end()
            raise

    def _begin(self, task: Callable[..., Any], *arguments: Any) -> None:
        self.start(task, *arguments)
        self._require_answers()

    def _require_answers(self) -> None:
        answers = self.answers(range(self.num_ranks), START_LIMIT_S)
        if len(answers) < self.num_ranks or not all(answer.good for answer in answers.values()):
            raise AssertionError(f"the ranks did not start: {answers}\n{self.remains()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, task: Callable[..., Any], *arguments: Any, ranks: Sequence[int] | None = None) -> None:
        """Let ranks, by default all, begin `task(*arguments)`."""
        for rank in range(self.num_ranks) if ranks is None else ranks:
            self.processes[rank].start(task, *arguments)

    def answers(self, ranks: Sequence[int], limit_s: float) -> dict[int, Answer]:
        """By rank, what became of the task; those that end, or say nothing in time, are missing."""
        answers = answers_of([self.processes[rank] for rank in ranks], limit_s)
        return {self.processes.index(process): answer for process, answer in answers.items()}

    def signal(self, rank: int, number: int) -> None:
        """Send it a signal."""
        self.processes[rank].signal(number)

    def codes(self, limit_s: float = END_LIMIT_S) -> list[int | None]:
        """The exit codes; None for ranks that have not ended by then."""
        return codes_of(self.processes, limit_s)

    def remains(self, first: Collection[int] = ()) -> str:
        """Return what is known of each rank: its exit code, or where it is, and what it wrote last to standard error.

        first: the ranks with which to begin, as a report is cut off somewhere.
        """
        for process in self.processes:
            process.signal(signal.SIGUSR1)
        codes, lines = self.codes(limit_s=1), []
        for rank, code in sorted(enumerate(codes), key=lambda known: known[0] not in first):
            log = self.processes[rank].log
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
        for process in self.processes:
            process.signal(signal.SIGKILL)
            process.pipe.close()
        if None in self.codes():
            raise AssertionError(f"ranks outlive SIGKILL: {self.codes(0)}")


class RankError(AssertionError):
    """A case raised on a rank, or a rank did not answer; the message holds the rank's traceback."""


class RankPool:
    """Ranks that wait for cases; a case is given the group of the ranks that it is run on.

    peer_timeout_s: the group's timeout, after which a rank gives up waiting for another.
    backends: the group's, and others for which `group_on` shall have groups.
    max_cases: that the same ranks may have; then there are fresh ones, as after a case that fails.
    """

    def __init__(
        self,
        num_ranks: int,
        peer_timeout_s: float = 60.0,
        backends: tuple[str, ...] = ("gloo",),
        max_cases: int | None = None,
        home: Nursery | None = None,
    ) -> None:
        self.num_ranks = num_ranks
        self._peer_timeout_s = peer_timeout_s
        self._backends = backends
        self._max_cases = max_cases
        self._home = home
        self._ranks: Ranks | None = None
        self._num_cases = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def ranks(self) -> Ranks:
        """Return the ranks for the next case, or that have the last one."""
        if self._ranks is None or self._ranks.are_gone:
            self._ranks, self._num_cases = Ranks(self.num_ranks, self._peer_timeout_s, self._backends[0], self._home), 0
            self._ranks._begin(_make_groups, self._backends, self.num_ranks, self._peer_timeout_s)
        return self._ranks

    def end(self) -> None:
        """Kill the ranks; the next case gets fresh ones."""
        if self._ranks is not None:
            self._ranks.end()
            self._ranks = None

    def run(
        self, case: Callable[..., Any], *arguments: Any, num_ranks: int | None = None, timeout_s: float = 120
    ) -> list[Any]:
        """`case(group, *arguments)` on the first `num_ranks` ranks; what each returned, by rank.

        case: a function at the top level of a module. Raises RankError if it raises on any of them.
        """
        used = range(num_ranks or self.num_ranks)
        self.start(case, *arguments, num_ranks=len(used))
        answers = self.answers(used, timeout_s)
        missing = [rank for rank in used if rank not in answers]
        failed = [f"rank {rank}: {_last_line_first(a.value)}" for rank, a in answers.items() if not a.good]
        if not missing and not failed:
            return [answers[rank].value for rank in used]
        told = "\n".join(failed)
        if missing:  # what failed comes before what is known of them, as it may be why they hang
            told = f"ranks hang, or are gone: {missing}\n{told}\n{self.ranks.remains(missing)}"
        self.end()  # the group may be broken
        raise RankError(told)

    def start(self, case: Callable[..., Any], *arguments: Any, num_ranks: int | None = None) -> None:
        """Begin what `run` does; `answers` waits for the end."""
        if self._num_cases == self._max_cases:
            self.end()
        used = num_ranks or self.num_ranks
        self.ranks.start(_run_case, self._num_cases, self._backends[0], used, case, arguments, ranks=range(used))
        self._num_cases += 1

    def answers(self, ranks: Sequence[int], timeout_s: float) -> dict[int, Answer]:
        """By rank, whether the case returned and what, or its traceback; ranks that do not answer are missing."""
        return self.ranks.answers(ranks, timeout_s)


def _last_line_first(trace: str) -> str:
    return f"{trace.strip().splitlines()[-1]}\n{trace}"


def free_port() -> int:
    """Return a port that nobody uses now, and that the system gives to nobody before it is used here."""
    while True:
        port = random.randrange(10000, 30000)  # Linux gives out those from 32768 on
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def run_forked_ranks(num_ranks: int, timeout_s: float, target: Callable[..., object], *arguments: Any) -> list[Any]:
    """`target(rank, *arguments)` as the ranks of a host that torchrun has started, but for loading torch.

    The exit code of each, None if it had not ended in time; it has then.
    """
    port = free_port()
    folder = nursery().new_folder()
    processes = [nursery().fork(folder / f"rank{rank}.log") for rank in range(num_ranks)]
    for rank, process in enumerate(processes):
        process.start(be_a_program, _as_rank, rank, num_ranks, port, target, arguments)
    try:
        return codes_of(processes, timeout_s)
    finally:
        for process in processes:
            process.signal(signal.SIGKILL)
        codes_of(processes)


def run_forked_programs(
    num_ranks: int, timeout_s: float, folder: Path, target: Callable[..., object], *arguments: Any
) -> list[subprocess.CompletedProcess[str]]:
    """`run_forked_ranks`, with each rank's output, which it writes to files in `folder`."""
    codes = run_forked_ranks(num_ranks, timeout_s, _write_to_files, folder, target, arguments)
    return [
        subprocess.CompletedProcess(
            arguments, code, (folder / f"stdout{rank}").read_text(), (folder / f"stderr{rank}").read_text()
        )
        for rank, code in enumerate(codes)
    ]


def run_script(_: int, path: Path, arguments: Sequence[str]) -> None:
    """Run a script as `python PATH ARGUMENTS` does; a target of `run_forked_programs`."""
    sys.argv = [str(path), *arguments]
    runpy.run_path(str(path), run_name="__main__")


# What follows runs in the processes.

_GROUPS: dict[tuple[str, int], Any] = {}


def group_on(backend: str, num_ranks: int) -> Any:
    """In a case of a pool: the group of the first `num_ranks` ranks on one of the pool's backends."""
    return _GROUPS[backend, num_ranks]


def whole_group_on(backend: str, timeout_s: float) -> Any:
    """In a task: the group of all ranks, on Gloo or on another backend."""
    import torch.distributed as dist

    if backend == "gloo":
        return dist.group.WORLD
    return dist.new_group(timeout=datetime.timedelta(seconds=timeout_s), backend=backend)  # else it is half an hour


def _be_there() -> None:
    """Do nothing, but answer."""


def _join(rank: int, num_ranks: int, rendezvous: str, timeout_s: float, backend: str) -> None:
    import torch.distributed as dist

    import collectives

    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(
        backend, init_method=f"file://{rendezvous}", rank=rank, world_size=num_ranks, timeout=timeout
    )
    collectives.set_gloo_thread_policy()  # ranks share cores here


def _make_groups(backends: tuple[str, ...], num_ranks: int, timeout_s: float) -> None:
    import torch.distributed as dist

    import collectives

    timeout = datetime.timedelta(seconds=timeout_s)
    for backend, size in itertools.product(backends, range(1, num_ranks + 1)):
        _GROUPS[backend, size] = dist.new_group(list(range(size)), timeout=timeout, backend=backend)
    collectives.set_gloo_thread_policy()  # for the new groups as well


def _run_case(number: int, backend: str, num_ranks: int, case: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    from torch.distributed import distributed_c10d

    # torch names groups by how many a rank has made, and not all ranks have had all cases: they would wait for others.
    distributed_c10d._world.group_count = 1000 * (number + 1)
    return case(_GROUPS[backend, num_ranks], *arguments)


def _as_rank(rank: int, num_ranks: int, port: int, target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    os.environ |= {name: str(value) for name, value in world.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    target(rank, *arguments)


def _write_to_files(rank: int, folder: Path, target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / f"{name}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    target(rank, *arguments)
