"""`Meeting`: the ranks of a host find each other, and pass each other the file descriptors of their segments.

They meet on Unix sockets with abstract names, which exist in one network namespace only, and each end asks the kernel
whose process the other one is: no other user gets a descriptor.
"""

import os
import secrets
import socket
import struct
from collections.abc import Mapping
from contextlib import ExitStack

from collectives.shared_memory.segment import Segment, new_segment_file

TIMEOUT_S = 20.0  # the ranks come here together: whoever is later than that has a reason that lasts
_RANK = struct.Struct("<q")
_CREDENTIALS = struct.Struct("3i")  # process, user, group: struct ucred of Linux


class Meeting:
    """One rank's side, from the making of its segment on. Raises OSError where that is not possible.

    name: of the socket on which this rank awaits the others.
    """

    def __init__(self, rank: int, slot_bytes: int) -> None:
        self._rank = rank
        self._open = ExitStack()
        with ExitStack() as opening:
            self._fd = new_segment_file(slot_bytes)
            opening.callback(os.close, self._fd)
            self._listener = opening.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self.name = f"collectives-{secrets.token_hex(16)}"
            self._listener.bind(f"\0{self.name}")
            self._listener.listen(4096)
            self._listener.settimeout(TIMEOUT_S)
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
        with ExitStack() as opening:
            connections: dict[int, socket.socket] = {}
            for peer in sorted(names):
                if peer < self._rank:  # the one with the higher rank connects, which needs nobody's answer
                    connections[peer] = opening.enter_context(self._connect(names[peer]))
            for _ in range(sum(peer > self._rank for peer in names)):
                connection = opening.enter_context(self._accepted())
                connections[_RANK.unpack(_read(connection, _RANK.size))[0]] = connection
            for connection in connections.values():
                socket.send_fds(connection, [b"s"], [self._fd])
            segments = {self._rank: Segment(self._fd)}
            for peer, connection in connections.items():
                segments[peer] = _received_segment(connection)
            if set(connections) != set(names):
                raise OSError(f"ranks {sorted(connections)} came, not {sorted(names)}")
            opening.pop_all()
            return segments, connections

    def _connect(self, name: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(TIMEOUT_S)
            connection.connect(f"\0{name}")
            _check_user(connection)
            connection.sendall(_RANK.pack(self._rank))
        except OSError:
            connection.close()
            raise
        return connection

    def _accepted(self) -> socket.socket:
        connection, _ = self._listener.accept()
        connection.settimeout(TIMEOUT_S)
        try:
            _check_user(connection)
        except OSError:
            connection.close()
            raise
        return connection


def _check_user(connection: socket.socket) -> None:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    if user != os.getuid():
        raise PermissionError(f"the process at the other end belongs to user {user}, not {os.getuid()}")


def _read(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) != size:
        raise ConnectionError("the other end has closed the connection")
    return data


def _received_segment(connection: socket.socket) -> Segment:
    data, fds, *_ = socket.recv_fds(connection, 1, 1)
    if not data or not fds:
        raise ConnectionError("the other end has closed the connection")
    try:
        return Segment(fds[0])
    finally:
        os.close(fds[0])
