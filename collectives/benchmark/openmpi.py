"""`OpenMpi`: Open MPI's collectives timed in turn with the others, in processes of its own.

mpirun starts as many ranks as the benchmark has, see `openmpi_rank.py`. Each rank of the benchmark has a connection to
the one of its own number, and sleeps while that one works: the two never need a core at the same time.
"""

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from collectives.benchmark.buffers import Buffers
from collectives.benchmark.case import BenchmarkCase
from collectives.benchmark.mpi_library import has_collective
from collectives.benchmark.mpirun import Mpirun
from collectives.benchmark.openmpi_rank import END, LOOPBACK, case_command, line_of
from collectives.benchmark.pattern import Pattern
from collectives.runtime import CollectiveError
from ringsim.measurements import OPENMPI

LOOK_S = 0.5  # how often rank 0 tells the others that Open MPI is still starting
START_S = 300.0  # each of its ranks imports torch, at the same time, maybe on few cores


class OpenMpi:
    """A rank's connection to the rank of Open MPI that has the same number.

    mpirun: on rank 0 what started it, elsewhere None.
    """

    def __init__(self, rank: int, connection: socket.socket, mpirun: Mpirun | None, timeout_s: float) -> None:
        self._rank, self._connection, self._mpirun, self._timeout_s = rank, connection, mpirun, timeout_s
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(timeout_s)
        self._answers = connection.makefile("rb")

    def implementation(self, case: BenchmarkCase, seed: int) -> "OpenMpiImplementation | None":
        """What does `case`; None if MPI has not its dtype or operation."""
        return OpenMpiImplementation(self, case, seed) if has_collective(case) else None

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """The answer to a command. Raises CollectiveError if there is none within the timeout."""
        self.send(command)
        return self.receive()

    def send(self, command: dict[str, Any]) -> None:
        """Give a command. Raises CollectiveError if Open MPI's rank has ended."""
        try:
            self._connection.sendall(line_of(command))
        except OSError as error:
            raise self._ended() from error

    def receive(self) -> dict[str, Any]:
        """The next answer. Raises CollectiveError if there is none within the timeout."""
        try:
            line = self._answers.readline()
        except TimeoutError as error:
            raise CollectiveError(
                f"Open MPI's rank {self._rank} gave no answer within {self._timeout_s:g} s: give a longer --timeout or "
                f"fewer --calls"
            ) from error
        except OSError as error:
            raise self._ended() from error
        if not line.endswith(b"\n"):
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Let go of the connection; if END was not sent, Open MPI's rank ends at once."""
        self._answers.close()
        self._connection.close()

    def _ended(self) -> CollectiveError:
        reason = self._mpirun.reason() if self._mpirun else "rank 0 says why"
        return CollectiveError(f"Open MPI's rank {self._rank} has ended: {reason}")


@dataclass(frozen=True, slots=True)
class OpenMpiImplementation:
    """Open MPI's collective of one case, on memory of its own process."""

    mpi: OpenMpi
    case: BenchmarkCase
    seed: int
    name: str = OPENMPI

    def count_wrong(self, data: Pattern, buffers: Buffers, rank: int) -> int | None:  # noqa: ARG002
        """See `Timed`: the rank of Open MPI makes the same data and looks at its own result."""
        return int(self.mpi.ask(case_command(self.case, self.seed))["wrong"])

    def turn(self, buffers: Buffers, calls: int) -> tuple[float, float]:  # noqa: ARG002
        """See `Timed`; the clock is the same for all processes of a host."""
        answer = self.mpi.ask({"calls": calls})
        return float(answer["begin_s"]), float(answer["end_s"])


@contextmanager
def openmpi(group: dist.ProcessGroup, timeout_s: float) -> Iterator[OpenMpi]:
    """Open MPI's ranks, started, until the end of the context; collective.

    Raises CollectiveError, on every rank, if they do not start.
    """
    rank = group.rank()
    with socket.create_server((LOOPBACK, 0)) as server, ExitStack() as stack:
        ports: list[int] = [0] * group.size()
        dist.all_gather_object(ports, server.getsockname()[1], group=group)
        start = _Start(server, stack.enter_context(Mpirun(ports)), timeout_s) if rank == 0 else None
        problem: list[str | None] = [None]
        while problem[0] is None:  # many short waits, because the start may take longer than the group's timeout
            if start:
                problem[0] = start.look()
            dist.broadcast_object_list(problem, group_src=0, group=group)
        if problem[0]:
            raise CollectiveError(f"rank {rank}: {problem[0]}")
        server.settimeout(timeout_s)  # all ranks of Open MPI connected before the first one was ready
        mpi = start.mpi if start and start.mpi else OpenMpi(rank, server.accept()[0], None, timeout_s)
        stack.callback(mpi.close)
        if not start:
            mpi.receive()
        yield mpi
        mpi.send(END)


class _Start:
    """Rank 0's view of the start.

    mpi: its connection, when its rank of Open MPI has connected.
    """

    def __init__(self, server: socket.socket, mpirun: Mpirun, timeout_s: float) -> None:
        self._server, self._mpirun, self._timeout_s = server, mpirun, timeout_s
        self._awaited, self._deadline_s = server, time.monotonic() + START_S
        self.mpi: OpenMpi | None = None

    def look(self) -> str | None:
        """Wait a moment; returns "" if all ranks are ready, None if not yet, or else why they never will be."""
        if select.select([self._awaited], [], [], LOOK_S)[0]:
            if self.mpi:
                return self._first_answer(self.mpi)
            self._awaited = self._server.accept()[0]
            self.mpi = OpenMpi(0, self._awaited, self._mpirun, self._timeout_s)
        if not self._mpirun.has_ended() and time.monotonic() < self._deadline_s:
            return None
        why = f": {self._mpirun.reason()}" if self._mpirun.has_ended() else f" within {START_S:g} s"
        self._mpirun.end()
        return f"Open MPI did not start{why}"

    def _first_answer(self, mpi: OpenMpi) -> str:
        """That it is ready; or why it ended, which the other ranks are to know before they wait for theirs."""
        try:
            mpi.receive()
        except CollectiveError as error:
            return str(error)
        return ""
