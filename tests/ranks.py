"""`RankPool`: real ranks in processes of their own, which are given many cases.

To import torch takes each process seconds. So one process imports it, and ranks are forked from that one.
"""

import contextlib
import datetime
import itertools
import multiprocessing
import os
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self
from unittest import mock

START_TIMEOUT_S = 120.0
# What ranks import: torch and ourselves, what torch imports late for an optimizer, and what modules of tests import.
PRELOADED = ["torch._dynamo", "torch.distributed", "collectives", "trainers.loop.trainer", "pytest", "hypothesis"]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # as torchrun does with several ranks on a host


def fork_process(target: Callable[..., object], *arguments: Any) -> Any:
    """`target(*arguments)`, begun in a process of its own that has imported torch already.

    When it returns or exits, the process ends at once: what an interpreter does at its end is left out.
    """
    return _start(multiprocessing.get_context("forkserver"), target, *arguments, daemon=False)


def run_forked_ranks(num_ranks: int, timeout_s: float, target: Callable[..., object], *arguments: Any) -> list[Any]:
    """`target(rank, *arguments)` as the ranks of a host that torchrun has started, but for loading torch.

    The exit code of each, None if it had not ended in time; it has then.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [fork_process(_as_rank, rank, num_ranks, port, target, arguments) for rank in range(num_ranks)]
    try:
        for process in processes:
            process.join(timeout_s)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _as_rank(rank: int, num_ranks: int, port: int, target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    os.environ |= {name: str(value) for name, value in world.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    target(rank, *arguments)


def _start(context: Any, target: Callable[..., object], *arguments: Any, daemon: bool) -> Any:
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=target, args=arguments, daemon=daemon)
    # A process with one thread, without those of a library for linear algebra, can be forked safely.
    with mock.patch.dict(os.environ, ONE_THREAD):
        process.start()
    return process


class RankError(AssertionError):
    """A case raised on a rank, or a rank did not answer; the message holds the rank's traceback."""


class RankPool:
    """`num_ranks` processes in one process group, waiting for cases.

    peer_timeout_s: the group's timeout, after which a rank gives up waiting for another.
    backends: the group's, and others for which `group_on` shall have groups.
    start_method: of multiprocessing; with "spawn" each rank imports torch itself, in the environment of this moment.
    """

    def __init__(
        self,
        num_ranks: int,
        directory: Path,
        peer_timeout_s: float = 60.0,
        backends: tuple[str, ...] = ("gloo",),
        start_method: str = "forkserver",
    ) -> None:
        self.num_ranks = num_ranks
        self._directory = Path(tempfile.mkdtemp(dir=directory))  # its own: several pools may be given one directory
        self._peer_timeout_s = peer_timeout_s
        self._backends = backends
        self._context: Any = multiprocessing.get_context(start_method)
        self._starts = 0
        self.processes: list[Any] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> Self:
        self._starts += 1
        rendezvous = str(self._directory / f"rendezvous{self._starts}")
        arguments = (self.num_ranks, rendezvous, self._peer_timeout_s, self._backends)
        for rank in range(self.num_ranks):
            self._start_rank(rank, *arguments)
        self._collect(range(self.num_ranks), START_TIMEOUT_S)
        return self

    def _start_rank(self, rank: int, *arguments: Any) -> None:
        ours, theirs = self._context.Pipe()
        self.processes.append(_start(self._context, _serve, rank, *arguments, theirs, daemon=True))
        theirs.close()
        self._pipes.append(ours)

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()  # the ranks see the end of their orders and leave
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self.processes.clear()
        self._pipes.clear()

    def run(
        self, case: Callable[..., Any], *arguments: Any, num_ranks: int | None = None, timeout_s: float = 120
    ) -> list[Any]:
        """`case(group, *arguments)` on the first `num_ranks` ranks; what each returned, by rank.

        case: a function at the top level of a module. Raises RankError if it raises on any of them.
        """
        used = range(num_ranks or self.num_ranks)
        if not self.processes:
            self.__enter__()
        self.start(case, *arguments, num_ranks=len(used))
        try:
            return self._collect(used, timeout_s)
        except RankError:
            self.__exit__()  # the group may be broken: the next case gets fresh ranks
            raise

    def start(self, case: Callable[..., Any], *arguments: Any, num_ranks: int | None = None) -> None:
        """Begin what `run` does; `answers` waits for the end."""
        for pipe in self._pipes[: num_ranks or self.num_ranks]:
            pipe.send((num_ranks or self.num_ranks, case, arguments))

    def answers(self, used: list[int], timeout_s: float) -> dict[int, tuple[bool, Any]]:
        """By rank, whether the case returned and what, or its traceback; ranks that do not answer are missing."""
        waiting = {self._pipes[rank]: rank for rank in used}
        answers: dict[int, tuple[bool, Any]] = {}
        while waiting:
            ready = wait(list(waiting), timeout_s)
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                with contextlib.suppress(EOFError, ConnectionResetError):  # the process is gone; its rank stays missing
                    answers[rank] = pipe.recv()
        return answers

    def _collect(self, used: range, timeout_s: float) -> list[Any]:
        answers = self.answers(list(used), timeout_s)
        silent = [rank for rank in used if rank not in answers]
        failed = [f"rank {rank}:\n{text}" for rank, (good, text) in answers.items() if not good]
        if silent or failed:
            raise RankError("\n".join([*failed, *(f"rank {rank} did not answer" for rank in silent)]))
        return [answers[rank][1] for rank in used]


_GROUPS: dict[tuple[str, int], Any] = {}  # in a rank's process


def group_on(backend: str, num_ranks: int) -> Any:
    """In a case: the group of the first `num_ranks` ranks on one of the pool's backends."""
    return _GROUPS[backend, num_ranks]


def _meet(rendezvous: str, num_ranks: int) -> None:
    """Wait until all ranks have started: to connect to one another they have only the group's own timeout."""
    import torch.distributed as dist

    store = dist.FileStore(f"{rendezvous}.meeting", num_ranks)
    store.add("here", 1)
    while store.add("here", 0) < num_ranks:
        time.sleep(0.01)


def _serve(
    rank: int, num_ranks: int, rendezvous: str, peer_timeout_s: float, backends: tuple[str, ...], orders: Connection
) -> None:
    """What a rank's process does: join the groups, then one case after the other."""
    import torch
    import torch.distributed as dist

    import collectives  # which also makes torch know the backend "ring"

    torch.set_num_threads(1)
    _meet(rendezvous, num_ranks)
    timeout = datetime.timedelta(seconds=peer_timeout_s)
    dist.init_process_group(
        backends[0], init_method=f"file://{rendezvous}", rank=rank, world_size=num_ranks, timeout=timeout
    )
    for backend, n in itertools.product(backends, range(1, num_ranks + 1)):
        _GROUPS[backend, n] = dist.new_group(list(range(n)), timeout=timeout, backend=backend)
    collectives.set_gloo_thread_policy()  # ranks share cores here
    orders.send((True, None))
    while True:
        try:
            used, case, arguments = orders.recv()
        except EOFError:
            break
        try:
            orders.send((True, case(_GROUPS[backends[0], used], *arguments)))
        except Exception:  # any failure is the test's to judge
            orders.send((False, traceback.format_exc()))
    os._exit(0)  # no tidy end: after a fault the group may be beyond saying goodbye
