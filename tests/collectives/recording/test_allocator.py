"""torch's allocator on a GPU reserves segments and cuts blocks from them."""

import pytest

from collectives.recording.memory import MIB, CachingAllocator


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ([1], 2 * MIB),
        ([MIB, MIB], 2 * MIB),
        ([MIB, MIB, 1], 4 * MIB),
        ([MIB + 1], 20 * MIB),
        ([9 * MIB, 9 * MIB, 2 * MIB], 20 * MIB),
        ([9 * MIB, 9 * MIB, 3 * MIB], 40 * MIB),
        ([10 * MIB, 1], 12 * MIB),
        ([11 * MIB], 12 * MIB),
    ],
)
def test_blocks_have_segments(sizes: list[int], reserved: int) -> None:
    """Small blocks share segments of 2 MiB, those below 10 MiB segments of 20, and others have a segment each."""
    allocator = CachingAllocator()
    for size_bytes in sizes:
        allocator.allocate(size_bytes)
    assert allocator.reserved_bytes == reserved


def reserved_after(freed: list[int], size_mib: float, stream: int = 0) -> int:
    """Allocate a block of that size where some of four neighbours of 4 MiB are free, and 40 and 60 MiB elsewhere."""
    allocator = CachingAllocator()
    blocks = [allocator.allocate(4 * MIB, 0) for _ in range(5)]
    large = [allocator.allocate(size * MIB, 0) for size in (60, 40)]
    for block in [*[blocks[index] for index in freed], *large]:
        allocator.free(block)
    for _ in range(2):
        allocator.allocate(int(size_mib * MIB), stream)
    return allocator.reserved_bytes // MIB


@pytest.mark.parametrize(
    ("freed", "size_mib", "reserved"),
    [
        ([0, 2], 4, 120),
        ([0, 2], 8, 120),  # no neighbours: cut from 40 MiB
        ([1, 0, 2], 12, 120),  # neighbours, in any order
        ([], 30, 120),  # the smallest that is large enough, and then the other
        ([], 39, 120),
        ([], 59, 180),
        ([], 41, 162),
    ],
)
def test_the_best_free_block_is_used(freed: list[int], size_mib: float, reserved: int) -> None:
    """The smallest that is large enough; what is left of it is free, and joins its free neighbours."""
    assert reserved_after(freed, size_mib) == reserved


def test_streams_share_no_blocks() -> None:
    """A block is for the stream on which it was first asked for."""
    assert reserved_after([0], 4, stream=1) == 140


def test_a_rest_of_a_mebibyte_is_not_cut_off() -> None:
    """The block is then larger than asked for."""
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(20 * MIB))
    block = allocator.allocate(19 * MIB)
    assert (block.size_bytes, allocator.reserved_bytes) == (20 * MIB, 20 * MIB)
