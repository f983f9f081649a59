"""`Mail`: places for short messages, posted before anyone asks for them.

Gloo's send is a rendezvous: the bytes leave only when the receiver has said where they go, and to hear that wakes two
threads, which takes longer than a short message itself. So for short messages a rank keeps receives posted from call to
call (MPI calls it the eager protocol). What lands there is added, or copied, from there.
"""

from collections import defaultdict, deque

import torch
import torch.distributed as dist
from torch._C import _autograd as autograd

from collectives.runtime.profiler_spans import profiling
from collectives.runtime.tags import SIZE_CLASS_SHIFT, SIZE_CLASSES

SMALLEST = 4 * 2**10  # bytes of a place; there is one kind for each power of two
LARGEST = 2**20  # longer messages are not worth the memory: the rendezvous is the smaller part of their time
SPARE = 1  # places posted beyond those being waited for: a peer may be a collective ahead
PLACES = 4  # that a fingerprint may need of a kind, as a rule: two posted ahead, the one waited for, and SPARE
LIMIT_BYTES = 16 * 2**20  # that fingerprints may take of the memory for each peer; what comes later goes without mail


class Place:
    """Where a message lands: `memory`, (bytes,) of uint8; and `work`, the receive that is posted for it."""

    __slots__ = ("_view", "memory", "work")

    def __init__(self, memory: torch.Tensor, work: "dist.Work | Unposted") -> None:
        self.memory, self.work = memory, work
        self._view = memory

    def as_wide_as(self, message: torch.Tensor) -> torch.Tensor:
        """The beginning of the memory as a tensor of the length and dtype of `message`."""
        view = self._view
        if view.dtype != message.dtype or view.nbytes != message.nbytes:
            view = self._view = self.memory[: message.nbytes].view(message.dtype)
        return view


class Unposted:
    """A receive that could not be posted, because the connection to the peer is closed: whoever waits for it is told.

    A receive is posted for a later call than the one that is being carried out, and it is that later call that fails.
    """

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def wait(self) -> None:
        """Raise what posting it raised."""
        raise self._error


class Mail:
    """The places of one rank of a group, by peer and tag; made when first needed, and kept as long as the group.

    Memory, for each peer that sends: of each fingerprint, and each power of two up to LARGEST that it uses, as many
    places as are ever waited for at once, and SPARE. All together take about LIMIT_BYTES.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._places: list[defaultdict[int, deque[Place]]] = [defaultdict(deque) for _ in range(group.size())]
        self._granted_bytes = 0

    def grant(self, tags: set[int]) -> bool:
        """Whether the calls of another fingerprint, whose messages have these tags, may go by mail.

        To be asked once for each fingerprint, in the same order on all ranks, which so get the same answers.
        """
        wanted = PLACES * sum(_place_bytes(tag) for tag in tags if goes_by_mail(tag))
        if self._granted_bytes + wanted > LIMIT_BYTES:
            return False
        self._granted_bytes += wanted
        return True

    def expect(self, group: dist.ProcessGroup, peer: int, tag: int) -> Place:
        """Where the next message of that tag from `peer` lands; messages of one tag land in order."""
        places = self._places[peer][tag]
        while len(places) <= SPARE:
            memory = torch.empty(_place_bytes(tag), dtype=torch.uint8)
            places.append(Place(memory, _post(group, memory, peer, tag)))
        return places.popleft()

    def renew(self, group: dist.ProcessGroup, peer: int, tag: int, place: Place) -> None:
        """The message in `place` has been read: let another one land there."""
        place.work = _post(group, place.memory, peer, tag)
        self._places[peer][tag].append(place)


def _post(group: dist.ProcessGroup, memory: torch.Tensor, peer: int, tag: int) -> dist.Work | Unposted:
    """A receive that may stay posted for long."""
    try:
        return _post_unseen(group, memory, peer, tag) if profiling() else group.recv([memory], peer, tag)
    except RuntimeError as error:
        return Unposted(error)


def _post_unseen(group: dist.ProcessGroup, memory: torch.Tensor, peer: int, tag: int) -> dist.Work:
    # What is begun under torch's profiler notes its end there, even if that profile is over and its memory given to
    # others by then: torch 2.13 crashes, or worse, does not. So this is to be unseen, in this thread and for a moment.
    autograd._enable_record_function(False)
    try:
        return group.recv([memory], peer, tag)
    finally:
        autograd._enable_record_function(True)


def mail_tag(tag: int, size_bytes: int) -> int:
    """The tag of a message of `size_bytes` in a collective of `tag`: that itself if the message is too long for mail.

    Both ends work it out from the length of the chunk, so they agree.
    """
    if size_bytes > LARGEST:
        return tag
    kind = max(size_bytes - 1, SMALLEST - 1).bit_length() - (SMALLEST - 1).bit_length()
    return tag + (kind + 1 << SIZE_CLASS_SHIFT)


def goes_by_mail(tag: int) -> bool:
    """Whether messages of that tag land in places."""
    return bool(tag >> SIZE_CLASS_SHIFT & SIZE_CLASSES)


def _place_bytes(tag: int) -> int:
    return SMALLEST << (tag >> SIZE_CLASS_SHIFT & SIZE_CLASSES) - 1
