"""`RawSockets`: the bytes of the ring all_reduce over bare TCP, nothing added up: what the transport alone would take.

Each rank has a socket to its neighbour on either side, with the system's own buffer sizes. Chunks go round as in
the ring: each is sent on when it has arrived, by a thread of its own, and received straight into the tensor's memory.
"""

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from queue import SimpleQueue

import torch
import torch.distributed as dist

from collectives.benchmark.buffers import Buffers
from collectives.benchmark.implementation import Implementation
from collectives.runtime import CollectiveError
from ringsim.algorithms import ring_all_reduce
from ringsim.measurements import RAW_SOCKETS
from ringsim.schedule import RankProgram, Schedule, partition, rank_program

LOOPBACK = "127.0.0.1"


class RawSockets:
    """A rank's two sockets, and its part of the ring."""

    def __init__(
        self, ring: Schedule, rank: int, program: RankProgram, to_next: socket.socket, from_previous: socket.socket
    ) -> None:
        self._rank, self._program, self._num_chunks = rank, program, ring.num_chunks
        self._to_next, self._from_previous = to_next, from_previous
        self._sender = ThreadPoolExecutor(max_workers=1, thread_name_prefix="raw-sockets")

    def move(self, buffers: Buffers) -> None:
        """Once round, and round again; raises CollectiveError if a neighbour fails or is later than the timeout."""
        if buffers.output is not buffers.input:
            buffers.output.copy_(buffers.input)  # as the others must
        memory = buffers.output.view(torch.uint8).numpy().data
        bounds = partition(buffers.output.numel(), self._num_chunks).tolist()
        width = buffers.output.itemsize
        chunks = [memory[low * width : high * width] for low, high in pairwise(bounds)]
        try:
            self._move(chunks)
        except OSError as error:
            raise CollectiveError(f"rank {self._rank}: raw sockets: {error or type(error).__name__}") from error

    def _move(self, chunks: list[memoryview]) -> None:
        ready: SimpleQueue[memoryview | None] = SimpleQueue()
        sending = self._sender.submit(self._send_all, ready)
        try:
            for send in self._program.first_sends:
                ready.put(chunks[send.chunk])
            for receive in self._program.receives:
                self._receive(chunks[receive.chunk])
                for send in receive.then_send:
                    ready.put(chunks[send.chunk])
        finally:
            ready.put(None)
        sending.result()

    def _send_all(self, ready: "SimpleQueue[memoryview | None]") -> None:
        while (chunk := ready.get()) is not None:
            self._to_next.sendall(chunk)

    def _receive(self, chunk: memoryview) -> None:
        """Fill `chunk`; one call into the kernel does it unless it is interrupted."""
        filled = 0
        while filled < len(chunk):
            count = self._from_previous.recv_into(chunk[filled:], flags=socket.MSG_WAITALL)
            if count == 0:
                raise ConnectionError("the connection was closed")
            filled += count

    def close(self) -> None:
        """Let go of sockets and thread."""
        self._to_next.close()
        self._from_previous.close()
        self._sender.shutdown(wait=False)


@contextmanager
def raw_sockets(group: dist.ProcessGroup, timeout_s: float) -> Iterator[Implementation]:
    """What `RawSockets` does, for all_reduce on one host; collective.

    Raises CollectiveError if no connection can be made.
    """
    schedule = ring_all_reduce(group.size())
    program = rank_program(schedule, group.rank())
    try:
        connections = _connect(group, program.first_sends[0].peer, timeout_s)
    except OSError as error:
        raise CollectiveError(f"rank {group.rank()}: raw sockets: connecting failed: {error}") from error
    ring = RawSockets(schedule, group.rank(), program, *connections)
    try:
        yield Implementation(RAW_SOCKETS, ring.move, reduces=False)
    finally:
        ring.close()


def _connect(group: dist.ProcessGroup, next_rank: int, timeout_s: float) -> tuple[socket.socket, socket.socket]:
    """A socket to the next rank, and one from the previous."""
    with socket.create_server((LOOPBACK, 0)) as server:
        server.settimeout(timeout_s)
        ports = [torch.empty(1, dtype=torch.int64) for _ in range(group.size())]
        dist.all_gather(ports, torch.tensor([server.getsockname()[1]]), group=group)
        to_next = socket.create_connection((LOOPBACK, int(ports[next_rank])), timeout_s)
        from_previous, _ = server.accept()
    for connection in (to_next, from_previous):
        _prepare(connection, timeout_s)
    return to_next, from_previous


def _prepare(connection: socket.socket, timeout_s: float) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel's own timeouts: Python's would ask before every call whether there is something to read.
    connection.settimeout(None)
    limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
