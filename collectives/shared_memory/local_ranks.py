"""`LocalRanks`: the ranks of a group that share memory with this one, and how they wait for each other.

A rank that publishes a chunk writes a record: where the chunk is, and then a stamp. A rank that waits for the chunk
reads the stamp again and again, at first without a pause, then letting others have its core in between, and at last
asleep until a byte on a socket wakes it. That order of writes and reads is what x86-64 keeps by itself.
"""

import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from weakref import WeakSet

import torch

from collectives.shared_memory.segment import (
    ASLEEP,
    AWAKE,
    BEGUN,
    CACHE_LINE,
    FAILED,
    FINISHED,
    FOR_A_PORTION,
    FOR_ANOTHER_REASON,
    FOR_RANK,
    SLOTS,
    STAMPS,
    Segment,
    record_place,
    slot_offset,
)

TOKEN_BITS = 31
_MIXER = 1103515245  # odd, so that histories which differ in one portion never have the same digest
_PORTIONS = 2**32  # how many portions a stamp tells apart; a program that runs for days comes to more
POLLS = 400  # reads without a pause, where each rank has a core: some ten microseconds
# How long a rank that waits then lets others have its core, before it sleeps: where each has a core, and where not.
YIELD_S, CROWDED_YIELD_S = 0.0002, 0.00002
YIELDS_BETWEEN_LOOKS = 4  # at the clock
# A sleeping rank looks that often by itself: it is missed by a rank that publishes in the moment it falls asleep.
RECHECK_S = 0.02
_OWNER_SHIFT = 40  # a location is the rank whose segment it is in, and the byte there
_OPEN: "WeakSet[LocalRanks]" = WeakSet()


def _close_all() -> None:
    for local in list(_OPEN):
        local.close()


if hasattr(os, "register_at_fork"):
    # A process that is forked, such as one that loads data, must not keep the connections of a dead rank open.
    os.register_at_fork(after_in_child=_close_all)


class OtherCallError(RuntimeError):
    """Another rank has made other calls of the group than this rank, as what it has sent or published says.

    peer: that rank.
    """

    def __init__(self, peer: int, detail: str = "") -> None:
        super().__init__(f"rank {peer} has made other calls of this group than this rank{detail}")
        self.peer = peer


class LateRankError(RuntimeError):
    """A rank has not read what another one has published.

    peer: that rank, or the first of several.
    """

    def __init__(self, cause: str, late: Sequence[int]) -> None:
        names = f"rank {late[0]} has" if len(late) == 1 else f"ranks {', '.join(map(str, late))} have"
        super().__init__(f"{cause}: {names} yet to read what was sent before")
        self.peer = late[0]


class LocalRanks:
    """The shared memory and the sockets through which one rank of a host reaches the others.

    segments: of each of these ranks, itself included. sockets: to each of the others, by rank.

    A portion has a number, which all ranks count alike; `open_portion` begins the next one. All that is published in it
    has a stamp: that number, and a digest of what all portions up to this one belonged to. So ranks that have done
    different things find out as soon as one of them waits for another one, or reuses the slot, in a later portion.

    first_gone: the rank that ended first, as far as this one knew when it failed; None if none had.
    """

    def __init__(
        self, rank: int, segments: Mapping[int, Segment], sockets: Mapping[int, socket.socket], timeout_s: float
    ) -> None:
        self.rank = rank
        self.portion = self._stamp = self._digest = 0
        self.first_gone: int | None = None
        self._segments, self._sockets = dict(segments), dict(sockets)
        self._words = {peer: segment.words for peer, segment in segments.items()}
        self._own_words = self._words[rank]
        self._others = [(peer, words) for peer, words in self._words.items() if peer != rank]
        self._timeout_s = timeout_s
        self._gone: list[int] = []
        self._is_closed = False
        self._filled = 0
        # A rank that polls keeps others from the core that they may need to publish what it polls for.
        is_crowded = len(segments) > len(os.sched_getaffinity(0))
        self._polls = range(1 if is_crowded else POLLS)
        self._yield_s = CROWDED_YIELD_S if is_crowded else YIELD_S
        self._poll = select.poll()
        self._peer_of_fd = {connection.fileno(): peer for peer, connection in sockets.items()}
        for connection in sockets.values():
            connection.setblocking(False)
            self._poll.register(connection, select.POLLIN)
        _OPEN.add(self)

    def __contains__(self, peer: int) -> bool:
        return peer in self._words

    def open_portion(self, token: int) -> None:
        """Begin the next portion, once no rank reads any more what this one has published in its slot.

        token: less than 2**TOKEN_BITS; what the portion belongs to.

        Raises LateRankError if a rank that has yet to read there has ended or failed, or is later than the group's
        timeout, OtherCallError if what it has read belonged to something else, and RuntimeError if this rank itself has
        failed before.
        """
        if self._is_closed:
            raise RuntimeError("an earlier failure has closed the connections to the other ranks of this host")
        self.portion += 1
        self._digest = (self._digest * _MIXER + token) % (1 << TOKEN_BITS)
        self._stamp = self.portion % _PORTIONS << TOKEN_BITS | self._digest
        self._own_words[BEGUN + self.portion % STAMPS] = self._stamp
        self._filled = slot_offset(self._segments[self.rank], self.portion)
        reused = self.portion - SLOTS
        begun = BEGUN + reused % STAMPS
        stamp = self._own_words[begun]
        for peer, words in self._others:
            if words[FINISHED] < reused:
                self._wait_for_finished(reused)
            if words[begun] != stamp:
                raise OtherCallError(peer)

    def close_portion(self) -> None:
        """End the portion: this rank has read all that it reads in it."""
        self._own_words[FINISHED] = self.portion
        for peer, connection in self._sockets.items():
            if self._words[peer][ASLEEP] == FOR_A_PORTION:
                _wake(connection)

    def allocate(self, length: int, dtype: torch.dtype) -> tuple[int, torch.Tensor]:
        """Return a place in the slot for a chunk of so many elements: its location, and the tensor, (length,)."""
        offset = self._filled
        self._filled = offset + -(-length * dtype.itemsize // CACHE_LINE) * CACHE_LINE
        return self.rank << _OWNER_SHIFT | offset, self._segments[self.rank].view(offset, length, dtype)

    def view(self, location: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        """(length,): what is published at that location."""
        owner = location >> _OWNER_SHIFT
        return self._segments[owner].view(location - (owner << _OWNER_SHIFT), length, dtype)

    def publish(self, peer: int, index: int, location: int) -> None:
        """Say to `peer`, by this rank's record `index` of the portion, where it finds a chunk."""
        words, place = self._own_words, record_place(self.portion, index)
        words[place] = location
        words[place + 1] = self._stamp
        if self._words[peer][ASLEEP] == FOR_RANK + self.rank:
            _wake(self._sockets[peer])

    def wait_for(self, peer: int, index: int) -> int:
        """Return the location in the record `index` of `peer`, once it is published.

        Raises OtherCallError if this portion of `peer`, or one before, belongs to something else, and RuntimeError if
        `peer` has ended or failed, or is later than the group's timeout.
        """
        words, place = self._words[peer], record_place(self.portion, index)
        stamp, begun = self._stamp, BEGUN + self.portion % STAMPS
        for _ in self._polls:
            if words[place + 1] == stamp:
                return words[place]

        def is_published() -> bool:
            seen = words[begun]  # once: the peer may write it at any moment
            if seen != stamp and seen >> TOKEN_BITS == stamp >> TOKEN_BITS:
                raise OtherCallError(peer)
            return words[place + 1] == stamp

        self._wait(is_published, FOR_RANK + peer, lambda: peer in self._gone)
        return words[place]

    def fail(self) -> None:
        """Close the connections after a failure, and tell the others which rank ended first, if this one knows."""
        if not self._is_closed:
            for _ in range(2):  # a rank may have woken this one, and then ended
                self._look(0)
            self.first_gone = self._first_gone()
            self._own_words[FAILED] = FOR_ANOTHER_REASON if self.first_gone is None else 1 + self.first_gone
        self.close()

    def _first_gone(self) -> int | None:
        """Whom those name that have failed since; or who has ended without having failed."""
        words = {peer: self._words[peer][FAILED] for peer in self._gone}
        told = [word - 1 for word in words.values() if word > 0]
        return next(iter(told or (peer for peer, word in words.items() if not word)), None)

    def close(self) -> None:
        """Close the connections: ranks that wait for this one are told so."""
        self._is_closed = True
        for connection in self._sockets.values():
            connection.close()

    def _wait_for_finished(self, portion: int) -> None:
        def late() -> list[int]:
            return [peer for peer in self._sockets if self._words[peer][FINISHED] < portion]

        def late_and_gone() -> list[int]:
            return [peer for peer in late() if peer in self._gone]

        try:
            # Not only for those that this rank receives from: the root of a broadcast waits for nobody else.
            self._wait(lambda: not late(), FOR_A_PORTION, lambda: bool(late_and_gone()))
        except RuntimeError as error:
            if ranks := late_and_gone() or late():
                raise LateRankError(str(error), ranks) from None

    def _wait(self, is_ready: Callable[[], bool], asleep: int, is_hopeless: Callable[[], bool]) -> None:
        began = time.monotonic()
        while time.monotonic() < began + self._yield_s:
            for _ in range(YIELDS_BETWEEN_LOOKS):
                os.sched_yield()
                if is_ready():
                    return
        self._own_words[ASLEEP] = asleep
        try:
            while not is_ready():
                self._look(RECHECK_S)
                if is_hopeless() and not is_ready():
                    raise RuntimeError("the connection is closed")
                if time.monotonic() > began + self._timeout_s:
                    raise RuntimeError(f"timed out after {self._timeout_s:g} s")
        finally:
            self._own_words[ASLEEP] = AWAKE

    def _look(self, timeout_s: float) -> None:
        """Sleep until another rank wakes this one, ends, or the time has passed."""
        for fd, _ in self._poll.poll(timeout_s * 1e3):
            peer = self._peer_of_fd[fd]
            with suppress(BlockingIOError):
                if not _received(self._sockets[peer]):
                    self._gone.append(peer)
                    self._poll.unregister(fd)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionError:
        return b""


def _wake(connection: socket.socket) -> None:
    # One that cannot take more has enough to wake up by; one that is closed is found out by who waits for it.
    with suppress(BlockingIOError, OSError):
        connection.send(b"w", socket.MSG_NOSIGNAL)
