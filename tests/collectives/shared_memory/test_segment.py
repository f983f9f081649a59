"""The memory of one rank: how long its parts are, and that they do not overlap."""

import mmap
import os
from unittest.mock import Mock

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


@pytest.mark.parametrize("slot_bytes", [1, 4096, 4097])
def test_no_part_overlaps_another(slot_bytes: int) -> None:
    """Whatever is written to the first and the last place of each part stays as it was when all are written.

    A slot has whole pages, at least as many bytes as were asked for, and begins at a cache line.
    """
    fd = new_segment_file(slot_bytes)
    segment, other = Segment(fd), Segment(fd)  # as its own rank and another one have it
    os.close(fd)
    assert slot_bytes <= segment.slot_bytes == other.slot_bytes < slot_bytes + mmap.PAGESIZE
    assert segment.slot_bytes % mmap.PAGESIZE == 0
    assert len(segment.words) * 8 == WORDS_BYTES
    records = [
        record_place(portion, index) + word
        for portion in range(SLOTS)
        for index in (0, MAX_RECORDS - 1)
        for word in range(WORDS_PER_RECORD)
    ]
    starts = [slot_offset(segment, portion) for portion in range(SLOTS)]
    assert all(start % CACHE_LINE == 0 for start in starts)
    ends = [place for start in starts for place in (start, start + segment.slot_bytes - 8)]
    for number, place in enumerate(records, 1):
        segment.words[place] = -number
    for number, place in enumerate(ends, 1):
        segment.view(place, 1, torch.int64).fill_(number)
    assert [other.words[place] for place in records] == [-number for number in range(1, len(records) + 1)]
    assert [other.view(place, 1, torch.int64).item() for place in ends] == [1, 2, 3, 4]
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
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(28, "No space left on device")))
    before = open_files()
    with pytest.raises(OSError, match="No space left"):
        new_segment_file(4096)
    assert open_files() == before
