"""`Heap`: memory of tensors that the ranks of a host share, so that others read a tensor where it lies.

Each rank has one, a file in memory that all ranks of the host map when they meet. It is as large as the machine's
memory, and holes take none: a tensor takes its part of it when it is made, and gives it back when it ends.
"""

import ctypes
import mmap
import os
import resource
from bisect import insort
from collections import deque
from threading import Lock
from typing import NamedTuple
from weakref import finalize

import torch

from collectives.shared_memory.segment import Segment, SharedFile, new_memory_file, whole_pages
from ringsim.limits import free_bytes, installed_bytes
from ringsim.units import format_size

MAX_HEAP_BYTES = 2**36  # each rank maps one for each rank of the host in each group, and has 2**47 addresses
_MADV_REMOVE, _MADV_DONTDUMP = 9, 16  # of Linux; Python's mmap has no madvise for memory that torch has mapped
_madvise = ctypes.CDLL(None, use_errno=True).madvise


def new_heap_file() -> int:
    """Return a file descriptor of an empty heap. Raises OSError where there is no such memory."""
    limits = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)
    is_limited = any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits)
    size_bytes = int(min(MAX_HEAP_BYTES, installed_bytes()))
    return new_memory_file(mmap.PAGESIZE if is_limited else whole_pages(size_bytes), is_sparse=True)


class Heap(SharedFile):
    """The heap of one rank: that rank allocates in it, the other ranks of its host read there.

    fd: of its file, which may be closed afterwards.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._fd, self._process = -1, os.getpid()
        self._begin, self._length = self.bytes.data_ptr(), len(self.bytes)
        self._free = [(0, self._length)]  # from and to, in order
        self._released: deque[tuple[int, int]] = deque()  # by finalizers, which run at any moment in any thread
        self._entering = Lock()
        _advise(self._begin, self._length, _MADV_DONTDUMP)

    def own(self, fd: int) -> "Heap":
        """Keep a file descriptor of the file, to allocate in it. Raises OSError where no more can be opened."""
        self._fd = os.dup(fd)
        finalize(self, os.close, self._fd)
        return self

    def new(self, size_bytes: int) -> torch.Tensor | None:
        """(size_bytes,): a tensor of bytes, at least one, which gives its memory back when it and its views have gone.

        Returns None where the heap has no such place. Raises OSError where there is no such memory.
        """
        length = whole_pages(size_bytes)
        # Linux gives the memory of a file even if it has to end processes for that.
        if length > (free := free_bytes()):
            raise OSError(f"{format_size(length)} are needed, and {format_size(free)} of memory is free")
        with self._entering:
            start = self._place(length)
        if start is None:
            return None
        try:
            os.posix_fallocate(self._fd, start, length)
        except OSError:
            self._release(start, length)
            raise
        # Nothing but the tensor keeps the array: once it has gone, nobody can use the memory any more.
        array = self.bytes.numpy()[start : start + size_bytes]
        finalize(array, self._release, start, length).atexit = False
        with torch.inference_mode(False):
            return torch.from_numpy(array)

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        """Return the byte at which `tensor` begins; None if it lies elsewhere."""
        start = tensor.untyped_storage().data_ptr() - self._begin
        if not 0 <= start < self._length:
            return None
        # An empty tensor has no address; where it is does not matter, but that is to be in the heap.
        return tensor.data_ptr() - self._begin if tensor.numel() else start

    def _place(self, length: int) -> int | None:
        while self._released:
            insort(self._free, self._released.popleft())
        merged: list[tuple[int, int]] = []
        for start, end in self._free:
            if merged and merged[-1][1] == start:
                start = merged.pop()[0]  # noqa: PLW2901
            merged.append((start, end))
        self._free = merged
        for index, (start, end) in enumerate(merged):
            if end - start >= length:
                merged[index : index + 1] = [(start + length, end)] if end - start > length else []
                return start
        return None

    def _release(self, start: int, length: int) -> None:
        if os.getpid() == self._process:  # not a process that was forked from the rank
            _advise(self._begin + start, length, _MADV_REMOVE)
            self._released.append((start, start + length))


def _advise(address: int, length: int, advice: int) -> None:
    """Advise the kernel; one that does not know the advice gives memory back only with the whole file."""
    _madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), advice)


class HostMemory(NamedTuple):
    """The memory of one rank that the ranks of its host share."""

    segment: Segment
    heap: Heap
