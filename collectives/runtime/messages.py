"""How messages are told apart (`Tag`, `CallStamp`), and the receives posted for short ones (`PrepostedReceives`).

A tag holds, from the lowest bit on (a program's own messages default to 0),

    8 bits   the `Tag`: the purpose of the message
    4 bits   the size class of its preposted buffer; 0 if there is none
    18 bits  the number of its call's fingerprint (`agreement`); 0 if it has none
    1 bit    whether its call has a stamp that travels: in front of an eager message; in any other message the last 18
             bits of the digest replace the number in the tag

Gloo's send is a rendezvous, which takes longer than a short message. Short messages are therefore *eager*, as in MPI:
their receives stay posted from call to call.
"""

from collections import defaultdict, deque
from datetime import timedelta
from enum import IntEnum, unique

import torch
import torch.distributed as dist
from msgspec import Struct
from torch._C import _autograd as autograd
from torch.autograd import profiler

from collectives.runtime.backends import new_buffer

SIZE_CLASS_SHIFT = 8
FINGERPRINT_SHIFT = 12
SIZE_CLASSES = (1 << FINGERPRINT_SHIFT - SIZE_CLASS_SHIFT) - 1
STAMPED = 1 << 30


@unique
class Tag(IntEnum):
    """The purpose of a message, less than 256; programs with their own schedules may use any other value."""

    COLLECTIVE = 0x52  # the chunks of a collective
    FINGERPRINT = 0x53  # the words by which ranks compare their calls
    ALGORITHM_CHOICE = 0x54  # the name of the algorithm that rank 0 has chosen
    HOSTS = 0x55  # the names of the ranks' machines
    RECORDED_RUN = 0x58  # the chunks of a run that is recorded
    SHARED_MEMORY = 0x5A  # where a rank's shared memory is
    BLOCK_LENGTHS = 0x5B  # how many elements a rank sends to each other one, and expects
    CLOSED_CONNECTION = 0x59  # never sent: a receive with it fails if the connection to the peer is closed


def numbered_tag(tag: int, number: int, stamped: bool = False) -> int:
    """Return the tag of a call with fingerprint `number`. stamped: whether its stamp travels."""
    return tag + (number << FINGERPRINT_SHIFT) + (STAMPED if stamped else 0)


def digest_tag(tag: int, digest: int) -> int:
    """Return the tag of a message that is not eager, with the bits of its call's digest that fit."""
    return tag & (1 << FINGERPRINT_SHIFT) - 1 | digest << FINGERPRINT_SHIFT & STAMPED - 1 | STAMPED


DIGEST_BITS = 62


class CallStamp(Struct, frozen=True):
    """The identity of a call in its messages.

    number: of its fingerprint, or 0. position: in the group's calls, from 1.
    digest: of the numbers of all calls so far, less than 2**DIGEST_BITS.
    travels: whether its messages carry position and digest.
    """

    number: int = 0
    position: int = 0
    digest: int = 0
    travels: bool = False


UNSTAMPED = CallStamp()  # of runs outside the group's calls

MIN_BUFFER_BYTES = 4 * 2**10  # there is a size class for each power of two from here
MAX_EAGER_BYTES = 2**20  # longer messages are not worth the memory: the rendezvous is the smaller part of their time
# In a collective without reduction a rendezvous message lands in its chunk, and its receive is posted early. For longer
# messages that takes less time than a copy out of an eager buffer.
MAX_EAGER_COPY_BYTES = 64 * 2**10
SPARE = 1  # buffers posted beyond those being waited for: a peer may be a collective ahead
# Buffers of a fingerprint and size class: POSTED_AHEAD, the one waited for, and SPARE. With several peers and many
# chunks up to MOST_POSTED_AHEAD are posted (`posted_ahead` in instructions.py), which is not counted, since ranks would
# count differently.
BUFFERS_PER_CLASS = 4
STAMP_BYTES = 16  # position and digest of a call; as many as the elements that follow are aligned to
LIMIT_BYTES = 16 * 2**20  # that fingerprints may take of the memory for each peer; those that come later are not eager


class EagerBuffer:
    """A buffer in which an eager message lands, or in which a stamped message is assembled.

    memory: (bytes,) uint8. whole: the last message's part. stamp: the two words in front, if any.
    work: the posted receive.
    """

    __slots__ = ("_view", "memory", "stamp", "whole", "work")

    def __init__(self, tag: int) -> None:
        self.memory = new_buffer(_buffer_bytes(tag), torch.uint8)
        self.stamp = self.memory.numpy().data[:STAMP_BYTES].cast("q") if tag & STAMPED else None
        self.work: dist.Work | FailedReceive | None = None
        self._view = self.whole = self.memory

    def view_as(self, message: torch.Tensor) -> torch.Tensor:
        view = self._view
        if view.dtype != message.dtype or view.nbytes != message.nbytes:
            start = STAMP_BYTES if self.stamp else 0
            self.whole = self.memory[: start + message.nbytes]
            view = self._view = self.whole[start:].view(message.dtype)
        return view

    def filled(self, message: torch.Tensor, stamp: CallStamp) -> torch.Tensor:
        assert self.stamp is not None
        self.view_as(message).copy_(message)
        self.stamp[0], self.stamp[1] = stamp.position, stamp.digest
        return self.whole


class FailedReceive:
    """A receive that could not be posted because the connection is closed; waiting for it fails."""

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def wait(self, _: timedelta) -> None:
        raise self._error


class PrepostedReceives:
    """The eager buffers of one rank of a group, by peer and tag; made at first use, and kept as long as the group.

    Memory: per sending peer, fingerprint and size class in use, SPARE buffers more than are ever waited for at once;
    about LIMIT_BYTES per peer. Where stamps travel, also one buffer per message sent at once.

    outgoing: free buffers for stamped messages, by tag.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._buffers: list[defaultdict[int, deque[EagerBuffer]]] = [defaultdict(deque) for _ in range(group.size())]
        self.outgoing: defaultdict[int, list[EagerBuffer]] = defaultdict(list)
        self._reserved: set[int] = set()
        self._reserved_bytes = 0

    def reserve(self, tags: set[int]) -> bool:
        """Whether messages with these tags, of one fingerprint, may be eager; reserve their buffers for good.

        All ranks ask in the same order, and get the same answers.
        """
        wanted = {tag for tag in tags - self._reserved if is_eager(tag)}
        wanted_bytes = BUFFERS_PER_CLASS * sum(map(_buffer_bytes, wanted))
        if self._reserved_bytes + wanted_bytes > LIMIT_BYTES:
            return False
        self._reserved |= wanted
        self._reserved_bytes += wanted_bytes
        return True

    def take(self, group: dist.ProcessGroup, peer: int, tag: int) -> EagerBuffer:
        """Return the buffer in which the next message with `tag` from `peer` lands; messages of a tag land in order."""
        buffers = self._buffers[peer][tag]
        while len(buffers) <= SPARE:
            self.repost(group, peer, tag, EagerBuffer(tag))
        return buffers.popleft()

    def repost(self, group: dist.ProcessGroup, peer: int, tag: int, buffer: EagerBuffer) -> None:
        buffer.work = _post(group, buffer.memory, peer, tag)
        self._buffers[peer][tag].append(buffer)


def _post(group: dist.ProcessGroup, memory: torch.Tensor, peer: int, tag: int) -> dist.Work | FailedReceive:
    # An operation that begins under torch's profiler writes its end into the profile, even after the profile's memory
    # was freed: torch 2.13 crashes, or worse, does not. The profiler is therefore off for a moment, in this thread.
    if is_profiled := profiler._is_profiler_enabled:
        autograd._enable_record_function(False)
    try:
        return group.recv([memory], peer, tag)
    except RuntimeError as error:
        return FailedReceive(error)
    finally:
        if is_profiled:
            autograd._enable_record_function(True)


def eager_tag(tag: int, size_bytes: int, reduces: bool) -> int:
    """Return the tag of a message of `size_bytes` in a collective of `tag`; `tag` itself if too long to be eager."""
    if size_bytes > (MAX_EAGER_BYTES if reduces else MAX_EAGER_COPY_BYTES):
        return tag
    size_class = max(size_bytes - 1, MIN_BUFFER_BYTES - 1).bit_length() - (MIN_BUFFER_BYTES - 1).bit_length()
    return tag + (size_class + 1 << SIZE_CLASS_SHIFT)


def is_eager(tag: int) -> bool:
    """Whether messages with this tag land in preposted buffers."""
    return bool(tag >> SIZE_CLASS_SHIFT & SIZE_CLASSES)


def _buffer_bytes(tag: int) -> int:
    longest = MIN_BUFFER_BYTES << (tag >> SIZE_CLASS_SHIFT & SIZE_CLASSES) - 1
    return longest + STAMP_BYTES if tag & STAMPED else longest
