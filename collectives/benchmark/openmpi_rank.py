"""One rank of Open MPI, which does what a rank of the benchmark tells it: `mpirun -n 2 python -m ... PORT PORT`.

It has a connection to the benchmark's rank of its own number, and waits there, because a rank that waits in MPI polls
and so takes the core of another. Commands and answers are lines of JSON:

    {"case": {...}, "seed": 0}  the case that comes next  ->  {"wrong": 0}: elements of this rank, after one call
    {"calls": 8}                a turn of so many calls   ->  {"begin_s": 1.5, "end_s": 1.6}: on `time.perf_counter`
    {"end": true}               leave
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

from collectives.benchmark.buffers import Buffers
from collectives.benchmark.case import BenchmarkCase
from collectives.benchmark.mpi_library import MpiLibrary, buffers_of
from collectives.benchmark.pattern import pattern
from ringsim.schedule import Collective

READY = {"ready": True}
END = {"end": True}
LOOPBACK = "127.0.0.1"


def case_command(case: BenchmarkCase, seed: int) -> dict[str, Any]:
    """The command that makes `case` the next one."""
    return {"case": {**asdict(case), "collective": case.collective.value}, "seed": seed}


def line_of(message: dict[str, Any]) -> bytes:
    """A command or an answer as it is sent."""
    return json.dumps(message).encode() + b"\n"


class OpenMpiRank:
    """What one rank holds between commands."""

    def __init__(self, library: MpiLibrary, rank: int) -> None:
        self._library, self._rank = library, rank
        self._buffers: Buffers | None = None
        self._call: Callable[[], object] | None = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what a command says, on all ranks at the same time."""
        if "case" in command:
            fields = command["case"]
            case = BenchmarkCase(**{**fields, "collective": Collective(fields["collective"])})
            return {"wrong": self._begin(case, command["seed"])}
        begin_s, end_s = self._turn(command["calls"])
        return {"begin_s": begin_s, "end_s": end_s}

    def _begin(self, case: BenchmarkCase, seed: int) -> int:
        """Take the memory for a case and do it once; returns how many elements are wrong."""
        self._buffers = self._call = None  # let go of the memory of the case before
        data = pattern(case, seed)
        buffers = buffers_of(Buffers.of(data, self._rank), case)
        call = self._library.collective(case, buffers, self._rank)
        buffers.spoil()
        buffers.refill()
        call()
        self._buffers, self._call = buffers, call
        return data.count_wrong(self._rank, buffers.output)

    def _turn(self, calls: int) -> tuple[float, float]:
        """When so many calls in a row began and ended here."""
        assert self._buffers is not None  # a case comes first
        assert self._call is not None
        call = self._call
        self._buffers.refill()
        self._library.barrier()
        begin_s = time.perf_counter()
        for _ in range(calls):
            call()
        return begin_s, time.perf_counter()


def main() -> None:
    """Serve until told to leave; the arguments are the ports at which the ranks of the benchmark listen."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    connection = socket.create_connection((LOOPBACK, int(sys.argv[1 + rank])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    commands: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_read, args=(connection, commands), daemon=True).start()
    library = MpiLibrary()
    library.start()
    library.barrier()
    connection.sendall(line_of(READY))
    served = OpenMpiRank(library, rank)
    while (command := commands.get()) != END:
        connection.sendall(line_of(served.answer(command)))
    library.finish()


def _read(connection: socket.socket, commands: "SimpleQueue[dict[str, Any]]") -> None:
    """Hand on the commands, in a thread of its own, which sees the benchmark's end during calls of MPI, too."""
    with suppress(OSError), connection.makefile("rb") as lines:
        for line in lines:
            command = json.loads(line)
            commands.put(command)
            if command == END:
                return
    os._exit(1)  # the benchmark is gone; mpirun ends the other ranks


if __name__ == "__main__":
    main()
