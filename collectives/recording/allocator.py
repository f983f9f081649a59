"""`CachingAllocator`: the memory that torch reserves on a GPU for the tensors of a program.

The rules are those of torch's default allocator (PyTorch's notes on CUDA semantics, c10/cuda/CUDACachingAllocator.cpp):
it cuts blocks from segments, which it asks CUDA for and, while memory is left, never gives back.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Optional

MIB = 2**20
GRAIN = 512  # bytes
SMALL = MIB  # largest block in a SMALL_SEGMENT; a rest of a larger block is cut off if it is larger than that
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB
OWN_SEGMENT = 10 * MIB  # smallest block that gets a segment of its own size
SEGMENT_GRAIN = 2 * MIB


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """A part of a segment. before, after: its neighbours there. pool: the free blocks that it may be one of."""

    address: int
    size_bytes: int
    pool: "list[tuple[int, int, MemoryBlock]]"
    before: Optional["MemoryBlock"] = None
    after: Optional["MemoryBlock"] = None
    is_free: bool = False

    def release(self) -> None:
        self.is_free = True
        insort(self.pool, (self.size_bytes, self.address, self))

    def take(self) -> None:
        self.is_free = False
        del self.pool[bisect_left(self.pool, (self.size_bytes, self.address))]

    def split(self, size_bytes: int) -> "MemoryBlock":
        """Keep the first bytes, and return the rest."""
        rest = MemoryBlock(self.address + size_bytes, self.size_bytes - size_bytes, self.pool, self, self.after)
        self.size_bytes = size_bytes
        self._link(rest, rest.after)
        return rest

    def join(self, after: "MemoryBlock") -> None:
        self.size_bytes += after.size_bytes
        self._link(after.after)

    def _link(self, *following: Optional["MemoryBlock"]) -> None:
        block = self
        for block.after in following:
            if block.after:
                block.after.before, block = block, block.after


class CachingAllocator:
    """The segments and blocks of a GPU. reserved_bytes: of the segments, which become only more."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self._pools: defaultdict[tuple[Hashable, bool], list[tuple[int, int, MemoryBlock]]] = defaultdict(list)

    def allocate(self, size_bytes: int, stream: Hashable = None) -> MemoryBlock:
        """Return the smallest free block that is large enough, or a part of it; streams share no blocks."""
        size_bytes = max(GRAIN, _rounded(size_bytes, GRAIN))
        is_small = size_bytes <= SMALL
        pool = self._pools[stream, is_small]
        index = bisect_left(pool, (size_bytes,))
        block = pool[index][-1] if index < len(pool) else self._new_segment(size_bytes, pool)
        if block.is_free:
            block.take()
        if block.size_bytes - size_bytes > (0 if is_small else SMALL):
            block.split(size_bytes).release()
        return block

    def _new_segment(self, size_bytes: int, pool: list[tuple[int, int, MemoryBlock]]) -> MemoryBlock:
        own_bytes = LARGE_SEGMENT if size_bytes < OWN_SEGMENT else _rounded(size_bytes, SEGMENT_GRAIN)
        segment = MemoryBlock(self.reserved_bytes, SMALL_SEGMENT if size_bytes <= SMALL else own_bytes, pool)
        self.reserved_bytes += segment.size_bytes
        return segment

    def free(self, block: MemoryBlock) -> None:
        """Make a block free, as one with free neighbours."""
        if block.after and block.after.is_free:
            block.after.take()
            block.join(block.after)
        if block.before and block.before.is_free:
            block.before.take()
            block.before.join(block)
            block = block.before
        block.release()


def _rounded(size_bytes: int, grain: int) -> int:
    return -(-size_bytes // grain) * grain
