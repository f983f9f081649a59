"""`Meeting`: the ranks of a host pass each other the file descriptors of their memory.

They meet on Unix sockets with abstract names, which exist in one network namespace only. The kernel tells each peer's
user: no other user gets a descriptor.
"""

import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial

from collectives.shared_memory.memory import Heap, HostMemory, Segment, new_heap_file, new_segment_file

MEETING_TIMEOUT_S = 20.0  # the ranks come here together: whoever is later than that has a reason that lasts
LOOK_S = 0.2  # how long to wait for the next rank before looking whether those that are missing are still there
_RANK = struct.Struct("<q")
_CREDENTIALS = struct.Struct("3i")  # process, user, group: struct ucred of Linux


class Meeting:
    """One rank's side, which begins by making its memory. Raises OSError if that is impossible.

    timeout_s: how long to wait for the others. name: of this rank's socket.
    """

    def __init__(self, rank: int, slot_bytes: int, timeout_s: float = MEETING_TIMEOUT_S) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._open = ExitStack()
        with ExitStack() as opening:
            self._fds = list[int]()
            for new_file in (partial(new_segment_file, slot_bytes), new_heap_file):
                self._fds.append(new_file())
                opening.callback(os.close, self._fds[-1])
            self._listener = opening.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self.name = f"collectives-{secrets.token_hex(16)}"
            self._listener.bind(f"\0{self.name}")
            self._listener.listen(4096)
            self._open = opening.pop_all()

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def meet(self, names: Mapping[int, str]) -> tuple[dict[int, HostMemory], dict[int, socket.socket]]:
        """Return the memory of all ranks, including this one, and a connection to each of the others.

        names: of their sockets, by rank. Raises OSError if one cannot be reached, does not come, or has another user.
        """
        connected: set[int] = set()
        try:
            with ExitStack() as opening:
                connections = {peer: opening.enter_context(self._connect(names[peer])) for peer in self._lower(names)}
                connected |= set(connections)
                while missing := {rank: name for rank, name in names.items() if rank not in connections}:
                    connection = opening.enter_context(self._accepted(missing))
                    rank = _RANK.unpack(_read(connection, _RANK.size))[0]
                    if rank not in missing:
                        raise OSError(f"rank {rank} connected, but one of ranks {sorted(missing)} was expected")
                    connections[rank] = connection
                memories = self._exchanged(connections)
                opening.pop_all()
                return memories, connections
        except OSError:
            self._open.close()
            self._reject_connections([names[peer] for peer in self._lower(names) if peer not in connected])
            raise

    def _lower(self, names: Mapping[int, str]) -> list[int]:
        """Return the ranks to which this rank connects; the others connect to it. A connect needs no answer."""
        return sorted(peer for peer in names if peer < self._rank)

    def _connect(self, name: str) -> socket.socket:
        with ExitStack() as opening:
            connection = opening.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(self._timeout_s)
            connection.connect(f"\0{name}")
            if _user_of(connection) != os.geteuid():
                raise PermissionError("the process at the other end of the connection belongs to another user")
            connection.sendall(_RANK.pack(self._rank))
            opening.pop_all()
        return connection

    def _accepted(self, missing: Mapping[int, str]) -> socket.socket:
        """Return the connection of the next process of this user; other users can connect, but get nothing.

        missing: socket names of the ranks yet to connect. A rank that has closed its socket has connected before, or
        never will.
        """
        end_s, gone = time.monotonic() + self._timeout_s, list[int]()
        while True:
            self._listener.settimeout(max(min(end_s - time.monotonic(), LOOK_S), 0.001))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if gone:
                    raise ConnectionError(f"rank {gone[0]} has ended, or cannot share memory") from None
                if time.monotonic() >= end_s:
                    raise
                gone = [rank for rank, name in missing.items() if _is_closed(name)]
                continue
            if _user_of(connection) == os.geteuid():
                connection.settimeout(self._timeout_s)
                return connection
            connection.close()

    def _exchanged(self, connections: Mapping[int, socket.socket]) -> dict[int, HostMemory]:
        for connection in connections.values():
            socket.send_fds(connection, [b"s"], self._fds)
        segment, heap = self._fds
        memories = {self._rank: HostMemory(Segment(segment), Heap(heap))}
        for peer, connection in connections.items():
            memories[peer] = _received_memory(connection, len(self._fds))
        memories[self._rank].heap.own(heap)
        return memories

    def _reject_connections(self, names: list[str]) -> None:
        for name in names:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._timeout_s)
                connection.connect(f"\0{name}")


def _is_closed(name: str) -> bool:
    """Whether the socket of this name is closed. A connect would call the rank that waits there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taking_its_place:
        try:
            taking_its_place.bind(f"\0{name}")
        except OSError:
            return False
    return True


def _user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user


def _read(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) != size:
        raise ConnectionError("the other end has closed the connection")
    return data


def _received_memory(connection: socket.socket, num_files: int) -> HostMemory:
    data, fds, *_ = socket.recv_fds(connection, 1, num_files, socket.MSG_CMSG_CLOEXEC)
    try:
        if not data:
            raise ConnectionError("the other end has closed the connection")
        if len(fds) < num_files:
            raise OSError("no file descriptor was received: the limit on open files is reached")
        return HostMemory(Segment(fds[0]), Heap(fds[1]))
    finally:
        for fd in fds:
            os.close(fd)
