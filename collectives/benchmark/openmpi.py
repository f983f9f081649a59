"""`OpenMpi`: Open MPI's collectives timed in turn with the others, in processes of its own.

mpirun starts as many ranks as the benchmark has, see `openmpi_rank.py`. Each rank of the benchmark has a connection to
the one of its own number, and sleeps while that one works: the two never need a core at the same time.
"""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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

POLL_S = 0.05  # how often rank 0 looks whether mpirun has ended while its ranks start
# Of the timeout, for the start: the other ranks wait for rank 0 by a collective, which fails after all of it.
START_SHARE = 0.8


class OpenMpi:
    """A rank's connection to the rank of Open MPI that has the same number.

    mpirun: on rank 0 what started it, elsewhere None.
    """

    def __init__(self, rank: int, connection: socket.socket, mpirun: Mpirun | None, timeout_s: float) -> None:
        self._rank, self._connection, self._mpirun = rank, connection, mpirun
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.set_timeout(timeout_s)
        self._answers = connection.makefile("rb")

    def set_timeout(self, timeout_s: float) -> None:
        """How long to wait for an answer."""
        self._timeout_s = timeout_s
        self._connection.settimeout(timeout_s)

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
        mpi, problem = None, [""]
        if rank == 0:
            mpirun = stack.enter_context(Mpirun(ports))
            try:
                mpi = _first(server, mpirun, timeout_s)
            except CollectiveError as error:
                problem = [str(error)]
        dist.broadcast_object_list(problem, group_src=0, group=group)
        if problem[0]:
            raise CollectiveError(f"rank {rank}: {problem[0]}")
        mpi = mpi or _further(server, rank, timeout_s)
        stack.callback(mpi.close)
        yield mpi
        mpi.send(END)


def _first(server: socket.socket, mpirun: Mpirun, timeout_s: float) -> OpenMpi:
    """Rank 0's, when all ranks of Open MPI are ready. Raises CollectiveError if they are not in time."""
    limit_s = timeout_s * START_SHARE
    deadline_s = time.monotonic() + limit_s
    server.settimeout(POLL_S)
    while True:
        with suppress(TimeoutError):
            mpi = OpenMpi(0, server.accept()[0], mpirun, limit_s)
            mpi.receive()
            mpi.set_timeout(timeout_s)
            return mpi
        if mpirun.has_ended():
            raise CollectiveError(f"Open MPI did not start: {mpirun.reason()}")
        if time.monotonic() > deadline_s:
            raise CollectiveError(f"Open MPI did not start within {limit_s:g} s: give a longer --timeout")


def _further(server: socket.socket, rank: int, timeout_s: float) -> OpenMpi:
    """Another rank's: its rank of Open MPI connected before the first one was ready."""
    server.settimeout(timeout_s)
    mpi = OpenMpi(rank, server.accept()[0], None, timeout_s)
    mpi.receive()
    return mpi
