"""`Segment`: the shared memory of one rank, which that rank writes and the other ranks of its host read.

It is a file that exists in memory alone (memfd_create), so that nothing of it is left when its last process ends, and
the size of /dev/shm, which is small in a container, does not matter. It holds, from its beginning,

    words    64-bit integers: how far the rank is, whether it sleeps, and the records of what it has published
    slots    two areas for chunks, used in turn

A run of a schedule, or of a part of it that fits a slot, is a *portion*. A rank writes to the slot of a portion only
when all ranks have finished the portion before the last, so that nobody still reads what was there.
"""

import fcntl
import mmap
import os

import torch

CACHE_LINE = 64
SLOTS = 2
MAX_RECORDS = 2**14  # that a portion may have of one rank
WORDS_PER_RECORD = 2
STAMPS = 8  # a rank that begins a portion looks at the one before the last; others may have begun two more than it
# Places of words, in units of 8 bytes; each that changes in a run is alone in its cache line.
FINISHED = 0  # the number of the last portion that the rank has finished
FAILED = 1  # written when the rank fails: 1 plus the rank that it knows to have ended first, or FOR_ANOTHER_REASON
FOR_ANOTHER_REASON = -1
ASLEEP = CACHE_LINE // 8  # what the rank waits for while it sleeps: AWAKE, FOR_A_PORTION, or FOR_RANK plus a rank
BEGUN = 2 * CACHE_LINE // 8  # the stamps of the last STAMPS portions that the rank has begun
RECORDS = 3 * CACHE_LINE // 8
AWAKE, FOR_A_PORTION, FOR_RANK = 0, 1, 2  # what the word at ASLEEP says
WORDS_BYTES = 8 * (RECORDS + SLOTS * MAX_RECORDS * WORDS_PER_RECORD)


class SharedFile:
    """The memory behind a file descriptor, which may be closed afterwards. Raises OSError where it cannot be mapped."""

    def __init__(self, fd: int) -> None:
        self.bytes = _mapped(fd)
        self._views = {torch.uint8: self.bytes}

    def view(self, offset: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        """(length,): the elements from the byte `offset` on, which is a multiple of their size."""
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
        """Return the byte at which the slot of a portion begins."""
        return WORDS_BYTES + portion % SLOTS * self.slot_bytes


def _mapped(fd: int) -> torch.Tensor:
    """(bytes,): the file in memory. Raises OSError where it cannot be mapped."""
    path, size = f"/proc/self/fd/{fd}", os.fstat(fd).st_size
    try:
        with torch.inference_mode(False):  # else nobody could write there outside of that mode
            # Not mmap.mmap: that keeps a file descriptor of its own, of which there may be few.
            return torch.from_file(path, shared=True, size=size, dtype=torch.uint8, device="cpu")
    except RuntimeError as error:
        os.close(os.open(path, os.O_RDWR))  # which says in its own error that no more files can be opened
        raise OSError(str(error).splitlines()[0]) from error


def whole_pages(size_bytes: int) -> int:
    """Round up to whole pages."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def new_memory_file(size_bytes: int, *, is_sparse: bool) -> int:
    """Create a file that exists in memory only, and return its file descriptor, which exec closes.

    size_bytes: the size of the file, whose bytes are all zero; it cannot be changed later.
    is_sparse: True to allocate a page of memory when it is first written to, False to allocate all pages now.

    Raises OSError if the system has no such files, or, unless `is_sparse`, not enough memory.
    """
    fd = os.memfd_create("collectives", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        # A rank cannot take away what another one has mapped.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        if not is_sparse:
            os.posix_fallocate(fd, 0, size_bytes)  # an error here, rather than a signal when it is first written to
    except OSError:
        os.close(fd)
        raise
    return fd


def new_segment_file(slot_bytes: int) -> int:
    """Return a file descriptor of a new segment, all zero, whose slots have that length, rounded up to whole pages.

    Raises OSError where there is no such memory.
    """
    return new_memory_file(WORDS_BYTES + SLOTS * whole_pages(slot_bytes), is_sparse=False)


def record_place(portion: int, index: int) -> int:
    """Where the words of the record `index` of a portion stand: its location, and then its stamp."""
    return RECORDS + (portion % SLOTS * MAX_RECORDS + index) * WORDS_PER_RECORD
