"""The memory of one rank: how long its parts are, and that they do not overlap."""

import mmap
import os

import pytest
import torch

from collectives.shared_memory.segment import (
    CACHE_LINE,
    MAX_RECORDS,
    RECORDS,
    SLOTS,
    WORDS_BYTES,
    WORDS_PER_RECORD,
    Segment,
    new_segment_file,
    record_place,
    slot_offset,
)
from tests.collectives.shared_memory.test_heap import open_files


def two_views(slot_bytes: int) -> tuple[Segment, Segment]:
    """One segment, as its own rank and another one have it."""
    fd = new_segment_file(slot_bytes)
    try:
        return Segment(fd), Segment(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("slot_bytes", [1, 4096, 4097, 2**21])
def test_sizes(slot_bytes: int) -> None:
    """A slot has whole pages, at least as many bytes as were asked for, and begins at a cache line."""
    segment, other = two_views(slot_bytes)
    assert segment.slot_bytes == other.slot_bytes >= slot_bytes
    assert segment.slot_bytes % mmap.PAGESIZE == 0
    assert segment.slot_bytes < slot_bytes + mmap.PAGESIZE
    assert len(segment.words) * 8 == WORDS_BYTES
    for portion in range(3):
        assert slot_offset(segment, portion) % CACHE_LINE == 0


def test_no_part_overlaps_another() -> None:
    """Whatever is written to the first and the last place of each part stays as it was when all are written."""
    segment, other = two_views(4096)
    slot_ends = [slot_offset(segment, portion) + at for portion in range(SLOTS) for at in (0, segment.slot_bytes - 8)]
    records = [
        record_place(portion, index) + word
        for portion in range(SLOTS)
        for index in (0, MAX_RECORDS - 1)
        for word in range(WORDS_PER_RECORD)
    ]
    for number, place in enumerate(records, 1):
        segment.words[place] = -number
    for number, offset in enumerate(slot_ends, 1):
        segment.view(offset // CACHE_LINE * CACHE_LINE, CACHE_LINE // 8, torch.int64)[offset % CACHE_LINE // 8] = number
    assert [other.words[place] for place in records] == [-number for number in range(1, len(records) + 1)]
    views = [other.view(at // CACHE_LINE * CACHE_LINE, 8, torch.int64)[at % CACHE_LINE // 8].item() for at in slot_ends]
    assert views == [1, 2, 3, 4]
    assert not any(other.words[:RECORDS])


def test_it_keeps_its_length() -> None:
    """A rank that made it shorter would kill the others with a signal."""
    fd = new_segment_file(4096)
    try:
        for size in (0, WORDS_BYTES, 2**30):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_without_memory_nothing_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """OSError, and no file descriptor more than before."""

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = open_files()
    with pytest.raises(OSError, match="No space left"):
        new_segment_file(4096)
    assert open_files() == before
