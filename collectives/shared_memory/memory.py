"""The memory of one rank that the ranks of its host read: its `Segment`, and its `Heap`.

Both are files in memory (memfd_create), which vanish with the last process and need no /dev/shm, small in a container.
A segment holds, from its beginning,

    words    64-bit integers: the rank's progress, whether it sleeps, and the records of published chunks
    slots    two areas for chunks, used alternately

A run of a schedule, or of a part that fits a slot, is a *portion*. A rank writes to its slot only when all ranks have
finished the portion before the last. A heap holds tensors that others read in place; it is as large as the machine's
memory, and holes take none.
"""

import ctypes
import fcntl
import mmap
import os
import resource
from bisect import insort
from collections import deque
from threading import Lock
from typing import NamedTuple
from weakref import finalize

import torch

from ringsim.limits import free_bytes, installed_bytes
from ringsim.units import format_size

CACHE_LINE = 64
SLOTS = 2
MAX_RECORDS = 2**14  # that a portion may have of one rank
WORDS_PER_RECORD = 2
RECORDS_OF_SLOT = MAX_RECORDS * WORDS_PER_RECORD  # in words
STAMPS = 8  # a rank that begins a portion looks at the one before the last; others may have begun two more than it
# Places of words, in units of 8 bytes; words that change in a run have separate cache lines.
FINISHED = 0  # the number of the last portion that the rank has finished
FAILED = 1  # written when the rank fails: 1 plus the rank that it knows to have ended first, or OTHER_FAILURE
OTHER_FAILURE = -1
SLEEP_STATE = CACHE_LINE // 8  # what the rank waits for while it sleeps: AWAKE, ON_PORTION, or ON_RANK plus a rank
STARTED_STAMPS = 2 * CACHE_LINE // 8  # the stamps of the last STAMPS portions that the rank has begun
RECORDS = 3 * CACHE_LINE // 8  # of the portions of each slot: for each chunk a location, and then a stamp
AWAKE, ON_PORTION, ON_RANK = 0, 1, 2  # what the word at SLEEP_STATE says
WORDS_BYTES = 8 * (RECORDS + SLOTS * RECORDS_OF_SLOT)


class SharedFile:
    """The memory behind a file descriptor, which may be closed afterwards. Raises OSError if it cannot be mapped."""

    def __init__(self, fd: int) -> None:
        self.bytes = _mapped(fd)
        self._views = {torch.uint8: self.bytes}

    def view(self, offset: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the elements from the byte `offset` on, a multiple of their size: (length,)."""
        whole = self._views.get(dtype)
        if whole is None:
            with torch.inference_mode(False):
                whole = self._views[dtype] = self.bytes.view(dtype)
        start = offset // dtype.itemsize
        return whole[start : start + length]


class Segment(SharedFile):
    """The words and the slots of a rank.

    words: (WORDS_BYTES / 8,) of 64-bit integers. slot_bytes: the length of a slot.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.words = self.bytes.numpy().data[:WORDS_BYTES].cast("q")
        self.slot_bytes = (len(self.bytes) - WORDS_BYTES) // SLOTS

    def slot_offset(self, portion: int) -> int:
        return WORDS_BYTES + portion % SLOTS * self.slot_bytes


def _mapped(fd: int) -> torch.Tensor:
    path, size = f"/proc/self/fd/{fd}", os.fstat(fd).st_size
    try:
        with torch.inference_mode(False):  # else nobody could write there outside of that mode
            # Not mmap.mmap, which keeps another file descriptor; these may be few.
            return torch.from_file(path, shared=True, size=size, dtype=torch.uint8, device="cpu")
    except RuntimeError as error:
        os.close(os.open(path, os.O_RDWR))  # which says in its own error that no more files can be opened
        raise OSError(str(error).splitlines()[0]) from error


def whole_pages(size_bytes: int) -> int:
    """Round up to whole pages."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def new_memory_file(size_bytes: int) -> int:
    """Create a file in memory, all zero, and return its file descriptor, which exec closes.

    size_bytes: fixed; a page is allocated when it is first written.

    Raises OSError if the system has no such files, or limits their size to less.
    """
    fd = os.memfd_create("collectives", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        # A rank cannot shrink a file that another one has mapped.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError:
        os.close(fd)
        raise
    return fd


def new_segment_file(slot_bytes: int) -> int:
    """Return a file descriptor of a new segment, all zero; slots are rounded up to whole pages.

    Raises OSError without memory.
    """
    size_bytes = WORDS_BYTES + SLOTS * whole_pages(slot_bytes)
    require_free(size_bytes)
    return new_memory_file(size_bytes)  # allocated now, its pages would take most of the time of a group's first call


def require_free(size_bytes: int) -> None:
    """Raise OSError if less memory is free: Linux allocates a file's even if it has to kill processes."""
    if size_bytes > (free := free_bytes()):
        raise OSError(f"{format_size(size_bytes)} are needed, and {format_size(free)} of memory is free")


MAX_HEAP_BYTES = 2**36  # each rank maps one for each rank of the host in each group, and has 2**47 addresses
_MADV_REMOVE, _MADV_DONTDUMP = 9, 16  # of Linux; Python's mmap has no madvise for memory that torch has mapped
_madvise = ctypes.CDLL(None, use_errno=True).madvise


def new_heap_file() -> int:
    """Return a file descriptor of an empty heap. Raises OSError if there is no such memory."""
    limits = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)
    is_limited = any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits)
    size_bytes = int(min(MAX_HEAP_BYTES, installed_bytes()))
    return new_memory_file(mmap.PAGESIZE if is_limited else whole_pages(size_bytes))


class Heap(SharedFile):
    """The heap of one rank, in which that rank allocates and the other ranks of its host read.

    fd: may be closed afterwards.
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
        """Keep a file descriptor of the file, to allocate in it. Raises OSError at the limit of open files."""
        self._fd = os.dup(fd)
        finalize(self, os.close, self._fd)
        return self

    def new(self, size_bytes: int) -> torch.Tensor | None:
        """Return a tensor of bytes, (size_bytes,), whose memory is freed when the tensor and its views are gone.

        Returns None if the heap has no such place. Raises OSError if there is not enough memory.
        """
        length = whole_pages(size_bytes)
        require_free(length)
        with self._entering:
            start = self._place(length)
        if start is None:
            return None
        try:
            os.posix_fallocate(self._fd, start, length)
        except OSError:
            self._release(start, length)
            raise
        # Only the tensor keeps the array: when it is gone, nobody uses the memory.
        array = self.bytes.numpy()[start : start + size_bytes]
        finalize(array, self._release, start, length).atexit = False
        with torch.inference_mode(False):
            return torch.from_numpy(array)

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        start = tensor.untyped_storage().data_ptr() - self._begin
        if not 0 <= start < self._length:
            return None
        # An empty tensor has no address; any place in the heap will do.
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
    """Advise the kernel; one that ignores the advice frees memory only with the whole file."""
    _madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), advice)


class HostMemory(NamedTuple):
    """The memory of one rank that the ranks of its host share."""

    segment: Segment
    heap: Heap
