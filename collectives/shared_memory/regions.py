"""`Regions`: memory of tensors that the ranks of a host share, so that others read a tensor where it lies.

A rank makes a region by itself. The others get its file descriptor over the socket between them when the rank first
publishes something that lies there, so they have it before they are told to read there. A region ends with the tensor:
its rank says so in the region and in its own segment, and the others let go of it at their next portion.
"""

import logging
import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from threading import Lock
from weakref import finalize

import torch

from collectives.shared_memory.segment import RELEASED, SharedFile, new_shared_file, whole_pages
from ringsim.limits import free_bytes
from ringsim.units import format_size

OWNER_SHIFT = 48  # a location is the rank in whose memory it is, and the address there
FIRST_ADDRESS = 1 << 40  # smaller ones are those of the segment
_LOG = logging.getLogger("collectives")
_GRANULE_SHIFT = 21
_FILES_TO_MAP = 3  # one that is received, one that is opened to map it, and one to know why that fails
_GRANULE = 1 << _GRANULE_SHIFT  # regions begin at multiples of that, so that one is found without a search
_HEADER_BYTES = mmap.PAGESIZE
WAKE = b"w"  # what wakes a rank, with a file descriptor or without
_LOCATION, _IS_RELEASED = 0, 1  # the words of the header


def _require_files(fd: int) -> None:
    """Raise OSError unless there is room for the files that a region of another rank takes while it is mapped."""
    spare: list[int] = []
    try:
        spare += (os.dup(fd) for _ in range(_FILES_TO_MAP))
    finally:
        for file in spare:
            os.close(file)


class Region(SharedFile):
    """A header of one page, and the memory of one tensor.

    location: where that memory begins.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd, _HEADER_BYTES)
        self.location = self.words[_LOCATION]

    @property
    def granules(self) -> range:
        """Return the parts of all locations that are this region's."""
        first = self.location >> _GRANULE_SHIFT
        return range(first, first + (len(self.bytes) - _HEADER_BYTES - 1 >> _GRANULE_SHIFT) + 1)

    def at(self, location: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        """(length,): the elements there."""
        return self.view(location - self.location + _HEADER_BYTES, length, dtype)


class Regions:
    """The regions of one rank, and those of other ranks in which it reads.

    words: of the rank's segment. sockets: to the other ranks of its host.
    """

    def __init__(self, rank: int, words: memoryview, sockets: Mapping[int, socket.socket]) -> None:
        self._words: memoryview | None = words  # None once it is closed, as a tensor may live on, and keep this alive
        self._sockets = sockets
        self._rank = rank
        self._numbers = count(1)  # of which each is written once, as tensors end in any thread
        self._entering = Lock()  # held for a moment only
        self._next_location, self._end = rank << OWNER_SHIFT | FIRST_ADDRESS, rank + 1 << OWNER_SHIFT
        self._at: dict[int, Region] = {}  # by granule
        self._own: dict[int, Region] = {}  # by the tensor's address in this process
        self._unsent: dict[Region, int] = {}  # file descriptors of regions of which no other rank knows yet
        self._refused: set[Region] = set()  # of which perhaps not all know
        self._of_peers: dict[int, list[Region]] = {}  # in which this rank has read
        self._seen_released: dict[int, int] = {}

    def new(self, size_bytes: int) -> torch.Tensor:
        """(size_bytes,): a tensor of bytes, at least one, in a new region, which ends with the tensor's memory.

        Raises OSError where there is no such memory.
        """
        length = whole_pages(size_bytes)
        # Linux gives the memory of a file even if it has to end processes for that.
        if length > (free := free_bytes()):
            raise OSError(f"{format_size(length)} are needed, and {format_size(free)} of memory is free")
        with self._entering:
            location = self._next_location
            self._next_location += -(-length // _GRANULE) * _GRANULE
        if location + length > self._end:  # after 256 TiB, whatever has been given back
            raise OSError("this rank has used up the address space for shared tensors")
        fd = new_shared_file(_HEADER_BYTES + length)
        try:
            _require_files(fd)
            os.pwrite(fd, location.to_bytes(8, "little"), 8 * _LOCATION)
            region = Region(fd)
        except OSError:
            os.close(fd)
            raise
        # Nothing but the tensor keeps the array: once it has gone, nobody can use the memory any more.
        array = region.bytes.numpy()[_HEADER_BYTES : _HEADER_BYTES + size_bytes]
        self._own[array.ctypes.data], self._unsent[region] = region, fd
        self._at |= dict.fromkeys(region.granules, region)
        finalize(array, self._release, array.ctypes.data).atexit = False
        with torch.inference_mode(False):
            return torch.from_numpy(array)

    def location_of(self, tensor: torch.Tensor) -> int | None:
        """Return where others find `tensor`; None if it does not lie in a region, or they cannot be told of that."""
        address = tensor.untyped_storage().data_ptr()
        region = self._own.get(address)
        if region is None or region in self._refused:
            return None
        fd = self._unsent.pop(region, None)
        if fd is not None:
            try:
                self._send(fd)
            except OSError as error:  # too many are under way, or a rank has ended, which others find out
                self._refused.add(region)
                _LOG.debug("rank %d copies a tensor that others cannot be told of: %s", self._rank, error)
                return None
            finally:
                os.close(fd)
        # An empty tensor has no address; where it is does not matter, but that is to be in the region.
        return region.location + (tensor.data_ptr() - address if tensor.numel() else 0)

    def view(self, location: int, length: int, dtype: torch.dtype) -> torch.Tensor | None:
        """(length,): what is there; None if that region is not known here yet."""
        region = self._at.get(location >> _GRANULE_SHIFT)
        return None if region is None else region.at(location, length, dtype)

    def add(self, peer: int, fds: Sequence[int]) -> None:
        """Take the regions of which another rank tells this one, but for those that cannot be mapped."""
        for fd in fds:
            try:
                region = Region(fd)
            except OSError:  # it is missed when it is read, if it ever is
                continue
            finally:
                os.close(fd)
            self._at |= dict.fromkeys(region.granules, region)
            self._of_peers.setdefault(peer, []).append(region)

    def has_released(self, peer: int, number: int) -> bool:
        """Whether another rank has released regions since this was asked last.

        number: that of its last release.
        """
        has_released = self._seen_released.get(peer, 0) != number
        self._seen_released[peer] = number
        return has_released

    def let_go(self, peer: int) -> None:
        """Let go of the regions of another rank that it has released."""
        kept = []
        for region in self._of_peers.pop(peer, []):
            if region.words[_IS_RELEASED]:
                self._forget(region)
            else:
                kept.append(region)
        self._of_peers[peer] = kept

    def close(self) -> None:
        """Say nothing of this rank's regions any more; the tensors in them stay as they are."""
        self._words = None
        for regions in self._of_peers.values():
            for region in regions:
                self._forget(region)
        self._of_peers.clear()
        while self._unsent:
            os.close(self._unsent.popitem()[1])

    def _send(self, fd: int) -> None:
        for connection in self._sockets.values():
            with suppress(BrokenPipeError, ConnectionResetError):  # whoever waits for that rank finds it out
                socket.send_fds(connection, [WAKE], [fd], socket.MSG_NOSIGNAL)

    def _release(self, address: int) -> None:
        region, words = self._own.pop(address), self._words
        self._forget(region)
        self._refused.discard(region)
        fd = self._unsent.pop(region, None)
        if fd is not None:
            os.close(fd)
        elif words is not None:  # nor is this a process that was forked from the rank
            region.words[_IS_RELEASED] = 1
            words[RELEASED] = next(self._numbers)

    def _forget(self, region: Region) -> None:
        for granule in region.granules:
            del self._at[granule]
