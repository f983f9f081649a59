"""The memory of one rank: how long its parts are, and that they do not overlap."""

import os
from unittest.mock import Mock

import pytest

from collectives.shared_memory.memory import WORDS_BYTES, new_segment_file
from tests.collectives.shared_memory.test_heap import open_files


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
