"""`Meeting`: the ranks of a host find each other, and pass each other the file descriptors of their segments.

They meet on Unix sockets with abstract names, which exist in one network namespace only, and each end asks the kernel
whose process the other one is: no other user gets a descriptor.
"""

import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from collectives.shared_memory.segment import Segment, new_segment_file

MEETING_TIMEOUT_S = 20.0  # the ranks come here together: whoever is later than that has a reason that lasts
_RANK = struct.Struct("<q")
_CREDENTIALS = struct.Struct("3i")  # process, user, group: struct ucred of Linux


class Meeting:
    """One rank's side, from the making of its segment on. Raises OSError where that is not possible.

    timeout_s: how long the others may take to come.
    name: of the socket on which this rank awaits the others.
    """

    def __init__(self, rank: int, slot_bytes: int, timeout_s: float = MEETING_TIMEOUT_S) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._open = ExitStack()
        with ExitStack() as opening:
            self._fd = new_segment_file(slot_bytes)
            opening.callback(os.close, self._fd)
            self._listener = opening.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self.name = f"collectives-{secrets.token_hex(16)}"
            self._listener.bind(f"\0{self.name}")
            self._listener.listen(4096)
            self._open = opening.pop_all()

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def meet(self, names: Mapping[int, str]) -> tuple[dict[int, Segment], dict[int, socket.socket]]:
        """The segments of all ranks, this one's included, and a connection to each of the others.

        names: of the sockets of the others, by rank.

        Raises OSError if one cannot be reached, does not come, or belongs to another user.
        """
        connected: set[int] = set()
        try:
            with ExitStack() as opening:
                connections = {peer: opening.enter_context(self._connect(names[peer])) for peer in self._lower(names)}
                connected |= set(connections)
                for _ in range(len(names) - len(connections)):
                    connection = opening.enter_context(self._accepted())
                    connections[_RANK.unpack(_read(connection, _RANK.size))[0]] = connection
                if set(connections) != set(names):
                    raise OSError(f"ranks {sorted(connections)} came, not {sorted(names)}")
                segments = self._exchanged(connections)
                opening.pop_all()
                return segments, connections
        except OSError:
            self._open.close()
            self._turn_away([names[peer] for peer in self._lower(names) if peer not in connected])
            raise

    def _lower(self, names: Mapping[int, str]) -> list[int]:
        """Those to which this rank connects, which needs nobody's answer; the others connect to this one."""
        return sorted(peer for peer in names if peer < self._rank)

    def _connect(self, name: str) -> socket.socket:
        with ExitStack() as opening:
            connection = opening.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(self._timeout_s)
            connection.connect(f"\0{name}")
            if _user_of(connection) != os.geteuid():
                raise PermissionError("the process at the other end belongs to another user")
            connection.sendall(_RANK.pack(self._rank))
            opening.pop_all()
        return connection

    def _accepted(self) -> socket.socket:
        """The connection of the next process of this user; others can connect, too, and get nothing."""
        end_s = time.monotonic() + self._timeout_s
        while True:
            self._listener.settimeout(max(end_s - time.monotonic(), 0.001))
            connection, _ = self._listener.accept()
            if _user_of(connection) == os.geteuid():
                connection.settimeout(self._timeout_s)
                return connection
            connection.close()

    def _exchanged(self, connections: Mapping[int, socket.socket]) -> dict[int, Segment]:
        for connection in connections.values():
            socket.send_fds(connection, [b"s"], [self._fd])
        segments = {self._rank: Segment(self._fd)}
        for peer, connection in connections.items():
            segments[peer] = _received_segment(connection)
        return segments

    def _turn_away(self, names: list[str]) -> None:
        """Connect to those who wait for this rank, and leave: they need not wait any longer."""
        for name in names:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._timeout_s)
                connection.connect(f"\0{name}")


def _user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user


def _read(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) != size:
        raise ConnectionError("the other end has closed the connection")
    return data


def _received_segment(connection: socket.socket) -> Segment:
    data, fds, *_ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise ConnectionError("the other end has closed the connection")
    if not fds:
        raise OSError("no file descriptor came: the limit on open files is reached")
    try:
        return Segment(fds[0])
    finally:
        os.close(fds[0])
