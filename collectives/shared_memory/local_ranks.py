"""`LocalRanks`: the ranks of a group that share memory with this one, and how they wait for each other.

A rank that publishes a chunk writes a record: the chunk's location, and then a stamp; x86-64 keeps the order of writes
and reads. The receiver polls the stamp, first without a pause, then yielding its core, and finally sleeps until a byte
on a socket wakes it.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakSet

import torch

from collectives.shared_memory import memory
from collectives.shared_memory.memory import HostMemory
from ringsim.limits import available_cores

TOKEN_BITS = 31
_MIXER = 1103515245  # odd, so that histories which differ in one portion never have the same digest
_PORTIONS = 2**32  # how many portions a stamp tells apart; a program that runs for days comes to more
YIELDS_BETWEEN_LOOKS = 4  # at the clock
# A sleeping rank polls at this interval, since a rank that publishes while it falls asleep does not wake it.
RECHECK_S = 0.02
OWNER_SHIFT = 48  # a location is the rank in whose memory it is, and the address there
HEAP_ADDRESS = 1 << 40  # smaller addresses are those of the segment
_WAKE = b"w"
_OPEN: "WeakSet[LocalRanks]" = WeakSet()


def _close_all() -> None:
    for local in list(_OPEN):
        local.close()


# A forked process, such as a data loader, must not keep the connections of a dead rank open.
os.register_at_fork(after_in_child=_close_all)


class PollPolicy(NamedTuple):
    """How a rank waits before it sleeps: it polls `polls` times, then yields its core between polls for `yield_s`."""

    polls: range
    yield_s: float


DEDICATED_CORE = PollPolicy(range(400), 0.0002)  # polls take some ten microseconds
# A polling rank may hold the core that the publishing rank needs.
OVERSUBSCRIBED = PollPolicy(range(1), 0.00002)


def poll_policy_of(num_ranks: int, *, is_beside: bool) -> PollPolicy:
    """Return the patience of each of `num_ranks` ranks of a host.

    is_beside: whether the program's own thread computes while another one waits.
    """
    num_threads = 2 * num_ranks if is_beside else num_ranks
    return DEDICATED_CORE if num_threads <= available_cores() else OVERSUBSCRIBED


class TimeLimit(NamedTuple):
    """How long a rank waits for another. whose: the origin of the limit, for a message."""

    seconds: float
    whose: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:g} s{self.whose}"


class PeerError(RuntimeError):
    """Another rank keeps this one from continuing. peer: that rank, or the first of several."""

    def __init__(self, message: str, peer: int) -> None:
        super().__init__(message)
        self.peer = peer


class OtherCallError(PeerError):
    """The messages of another rank show that it has made other calls."""

    def __init__(self, peer: int, detail: str = "") -> None:
        super().__init__(f"rank {peer} has made other calls of this group than this rank{detail}", peer)


class LocalRanks:
    """The shared memory and the sockets through which one rank of a host reaches the others.

    memories: of these ranks, itself included. sockets: to the others, by rank.
    limit: of a wait, read anew each time.

    All records of a portion have a stamp: its number, and a digest of the tokens up to it. Ranks that execute different
    schedules find out as soon as one waits for another, or reuses the slot.

    A tensor in the rank's heap is lent, not copied: its location is published, and `take_back` waits until all have
    read it. A rank that fails does not wait: data made of lent memory is forwarded, or returned, only after a check for
    failed ranks.

    first_gone: the rank that ended first, as far as known when this one failed.
    """

    def __init__(
        self,
        rank: int,
        memories: Mapping[int, HostMemory],
        sockets: Mapping[int, socket.socket],
        limit: Callable[[], TimeLimit],
    ) -> None:
        self.rank = rank
        self.portion = self._stamp = self._digest = 0
        self.first_gone: int | None = None
        self._memories, self._sockets = dict(memories), dict(sockets)
        self._words = {peer: of_peer.segment.words for peer, of_peer in memories.items()}
        self._own_words = self._words[rank]
        self.heap = memories[rank].heap
        self._has_lent = self._has_borrowed = False
        self._others = [(peer, words) for peer, words in self._words.items() if peer != rank]
        self._limit = limit
        self._gone: list[int] = []
        self._is_closed = False
        self._filled = self._records = 0
        # While the main thread waits, the rank has nothing else to do; while another thread waits for an asynchronous
        # collective, the program computes.
        self._policies = [poll_policy_of(len(memories), is_beside=is_beside) for is_beside in (False, True)]
        self._policy = self._policies[False]
        self._poll = select.poll()
        self._peer_of_fd = {connection.fileno(): peer for peer, connection in sockets.items()}
        for connection in sockets.values():
            connection.setblocking(False)
            self._poll.register(connection, select.POLLIN)
        _OPEN.add(self)

    def __contains__(self, peer: int) -> bool:
        return peer in self._words

    def open_portion(self, token: int) -> None:
        """Begin the next portion, once no rank reads the data that this one has published in its slot.

        token: less than 2**TOKEN_BITS; identifies schedule and tensor.

        Raises PeerError if a rank that has yet to read has ended, failed or exceeds the group's timeout; OtherCallError
        if its token differed; RuntimeError if this rank has failed before.
        """
        if self._is_closed:
            raise RuntimeError("an earlier failure has closed the connections to the other ranks of this host")
        self._policy = self._policies[threading.get_ident() != threading.main_thread().ident]
        self.portion += 1
        self._digest = (self._digest * _MIXER + token) % (1 << TOKEN_BITS)
        self._stamp = self.portion % _PORTIONS << TOKEN_BITS | self._digest
        self._own_words[memory.STARTED_STAMPS + self.portion % memory.STAMPS] = self._stamp
        self._filled = self._memories[self.rank].segment.slot_offset(self.portion)
        self._records = memory.RECORDS + self.portion % memory.SLOTS * memory.RECORDS_OF_SLOT
        self._check_finished(self.portion - memory.SLOTS)

    def _check_finished(self, portion: int) -> None:
        begun = memory.STARTED_STAMPS + portion % memory.STAMPS
        stamp = self._own_words[begun]
        for peer, words in self._others:
            if words[memory.FINISHED] < portion:
                self._wait_for_finished(portion)
            if words[begun] != stamp:
                raise OtherCallError(peer)

    def close_portion(self) -> None:
        self._own_words[memory.FINISHED] = self.portion
        asleep = [peer for peer, words in self._others if words[memory.SLEEP_STATE] == memory.ON_PORTION]
        # They wait for the last rank; a wake-up by any other would be useless.
        if asleep and all(words[memory.FINISHED] >= self.portion for _, words in self._others):
            for peer in asleep:
                _wake(self._sockets[peer])

    def lend(self, tensor: torch.Tensor) -> int | None:
        """Return the location of `tensor` for others, until `take_back`; None if it is not in the heap of this rank."""
        offset = self.heap.offset_of(tensor)
        if offset is None:
            return None
        self._has_lent = True
        return self.rank << OWNER_SHIFT | HEAP_ADDRESS + offset

    def take_back(self) -> None:
        """End a collective: wait until nobody reads what this rank has lent in it.

        Raises the errors of `open_portion` and `require_lenders`.
        """
        if self._has_lent:
            self._check_finished(self.portion)
        self.require_lenders()
        self._has_lent = self._has_borrowed = False

    def require_lenders(self) -> None:
        """Raise PeerError if this rank has borrowed in this collective, and another rank has failed."""
        if self._has_borrowed:
            for peer, words in self._others:
                if words[memory.FAILED]:
                    detail = "and may have overwritten its tensor while this rank read it"
                    raise PeerError(f"rank {peer} has failed, {detail}", peer)

    def is_borrowed(self, location: int | None) -> bool:
        if location is None or location >> OWNER_SHIFT == self.rank:
            return False
        return location & (1 << OWNER_SHIFT) - 1 >= HEAP_ADDRESS

    def allocate(self, length: int, dtype: torch.dtype) -> tuple[int, torch.Tensor]:
        """Return a free place in the slot for a chunk of `length` elements: its location, and the tensor, (length,)."""
        offset = self._filled
        self._filled = offset + -(-length * dtype.itemsize // memory.CACHE_LINE) * memory.CACHE_LINE
        return self.rank << OWNER_SHIFT | offset, self._memories[self.rank].segment.view(offset, length, dtype)

    def view(self, location: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        owner = location >> OWNER_SHIFT
        address = location - (owner << OWNER_SHIFT)
        if address < HEAP_ADDRESS:
            return self._memories[owner].segment.view(address, length, dtype)
        self._has_borrowed = True
        return self._memories[owner].heap.view(address - HEAP_ADDRESS, length, dtype)

    def publish(self, peer: int, index: int, location: int) -> None:
        """Publish a chunk's location to `peer` in this rank's record `index` of the portion.

        Raises the error of `require_lenders`: the chunk may have been made of borrowed data.
        """
        self.require_lenders()
        words, place = self._own_words, self._records + index * memory.WORDS_PER_RECORD
        words[place] = location
        words[place + 1] = self._stamp
        if self._words[peer][memory.SLEEP_STATE] == memory.ON_RANK + self.rank:
            _wake(self._sockets[peer])

    def wait_for(self, peer: int, index: int) -> int:
        """Return the location in the record `index` of `peer`, once it is published.

        Raises OtherCallError if `peer` executes something else, RuntimeError if it has ended, failed or exceeds the
        group's timeout.
        """
        words, place = self._words[peer], self._records + index * memory.WORDS_PER_RECORD
        stamp = self._stamp
        for _ in self._policy.polls:
            if words[place + 1] == stamp:
                return words[place]

        begun = memory.STARTED_STAMPS + self.portion % memory.STAMPS

        def is_published() -> bool:
            seen = words[begun]  # once: the peer may write it at any moment
            if seen != stamp and seen >> TOKEN_BITS == stamp >> TOKEN_BITS:
                raise OtherCallError(peer)
            return words[place + 1] == stamp

        self._wait(is_published, memory.ON_RANK + peer, lambda: peer in self._gone)
        return words[place]

    def fail(self) -> None:
        """Close the connections after a failure, and tell the others which rank ended first, if known."""
        if not self._is_closed:
            for _ in range(2):  # a rank may have woken this one, and then ended
                self._look(0)
            self.first_gone = self._first_gone()
            reason = memory.OTHER_FAILURE if self.first_gone is None else 1 + self.first_gone
            self._own_words[memory.FAILED] = reason
        self.close()

    def _first_gone(self) -> int | None:
        words = {peer: self._words[peer][memory.FAILED] for peer in self._gone}
        known = [word - 1 for word in words.values() if word > 0]
        return next(iter(known or (peer for peer, word in words.items() if not word)), None)

    def close(self) -> None:
        self._is_closed = True
        for connection in self._sockets.values():
            connection.close()

    def _wait_for_finished(self, portion: int) -> None:
        def late() -> list[int]:
            return [peer for peer in self._sockets if self._words[peer][memory.FINISHED] < portion]

        def late_and_ended() -> list[int]:
            return [peer for peer in late() if peer in self._gone]

        try:
            # For all ranks, not only senders to this one: the root of a broadcast waits for nothing else.
            self._wait(lambda: not late(), memory.ON_PORTION, lambda: bool(late_and_ended()))
        except RuntimeError as error:
            if ranks := late_and_ended() or late():
                names = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"
                raise PeerError(f"{error}: {names} yet to read what was sent before", ranks[0]) from None

    def _wait(self, is_ready: Callable[[], bool], asleep: int, is_hopeless: Callable[[], bool]) -> None:
        began = time.monotonic()
        while time.monotonic() < began + self._policy.yield_s:
            for _ in range(YIELDS_BETWEEN_LOOKS):
                os.sched_yield()
                if is_ready():
                    return
        self._own_words[memory.SLEEP_STATE] = asleep
        try:
            while not is_ready():
                self._look(RECHECK_S)
                if is_hopeless() and not is_ready():
                    raise RuntimeError("the connection is closed")
                if time.monotonic() > began + (limit := self._limit()).seconds:
                    raise RuntimeError(f"timed out after {limit}")
        finally:
            self._own_words[memory.SLEEP_STATE] = memory.AWAKE

    def _look(self, timeout_s: float) -> None:
        for fd, _ in self._poll.poll(timeout_s * 1e3):
            peer = self._peer_of_fd[fd]
            wake_ups = b""  # as of a rank that has ended
            with suppress(ConnectionError):
                try:
                    wake_ups = self._sockets[peer].recv(4096)
                except BlockingIOError:
                    continue
            if not wake_ups:
                self._gone.append(peer)
                self._poll.unregister(fd)


def _wake(connection: socket.socket) -> None:
    # A full socket has wake-ups enough; a closed one is detected by the rank that waits for it.
    with suppress(BlockingIOError, OSError):
        connection.send(_WAKE, socket.MSG_NOSIGNAL)
