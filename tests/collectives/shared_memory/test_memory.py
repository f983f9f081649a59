"""Memory that ranks share: how long its parts are, who sees it, when it is back, and what a fault may do to it."""

import gc
import os
import random
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from collectives.shared_memory import LocalRanks, memory
from collectives.shared_memory.memory import WORDS_BYTES, Heap, new_heap_file, new_segment_file
from tests.collectives.shared_memory.test_local_ranks import local_ranks, receive
from tests.processes import limited


def new(local: LocalRanks, value: float, length: int = 8) -> torch.Tensor:
    """(length,): a tensor in the heap of that rank."""
    return local.heap.new(4 * length).view(torch.float32).fill_(value)  # type: ignore[union-attr]


def mapped() -> int:
    """How many files of ours this process has in its memory."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("/memfd:collectives")


def open_files() -> int:
    """How many this process has."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def in_use(heap: Heap) -> int:
    """The bytes of memory that the file of a heap takes."""
    gc.collect()
    return 512 * os.fstat(heap._fd).st_blocks


def test_memory_is_back_with_the_last_view() -> None:
    """And used again; no place is lost, whatever the order in which tensors come and go."""
    with local_ranks(1) as (local,):
        files, whole, draw = open_files(), local.heap._free, random.Random(1)
        kept: list[torch.Tensor] = []
        for turn in range(300):
            kept.append(new(local, turn, draw.choice([1, 1000, 5000])))
            assert kept[-1].min() == kept[-1].max() == turn
            while len(kept) > draw.randrange(1, 20):
                kept.pop(draw.randrange(len(kept)))
        assert all(tensor.min() == tensor.max() for tensor in kept)
        views = [tensor[1:] for tensor in kept if len(tensor) > 1]
        del kept
        assert in_use(local.heap) >= 4096 * len(views) > 0
        del views
        assert (in_use(local.heap), open_files()) == (0, files)
        assert new(local, 1.0).sum() == 8
        new(local, 1.0)
        assert local.heap._free == [(4096, whole[0][1])]


def test_a_tensor_outlives_its_group() -> None:
    """It stays as it is, and keeps the file of its heap alone."""
    maps, files = mapped(), open_files()
    with local_ranks(2, is_open=True) as ranks:
        tensor = new(ranks[0], 3.0)
        ranks[0].publish(1, 0, ranks[0].lend(tensor))  # type: ignore[arg-type]
        assert receive(ranks[1], 0, 0) == 3
        for local in ranks:
            local.close_portion()
        for local in ranks:
            local.take_back()
    del ranks, local
    assert (mapped(), open_files()) == (maps + 1, files + 1)
    assert tensor.sum() == 24
    del tensor
    assert (mapped(), open_files()) == (maps, files)


def test_a_forked_process_releases_nothing() -> None:
    """A worker that loads data drops its copy of the tensor."""
    with local_ranks(1) as (local,):
        tensor = new(local, 1.0)
        child = os.fork()
        if child == 0:
            del tensor
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert tensor.sum() == 8
        assert in_use(local.heap) == 4096


def test_more_memory_than_there_is() -> None:
    """It is refused, where Linux would rather end processes; where the size of files is limited, nothing is shared."""
    with local_ranks(1) as (local,):
        with pytest.raises(OSError, match="of memory is free"):
            local.heap.new(2**44)
        assert new(local, 1.0).sum() == 8
    with limited(resource.RLIMIT_FSIZE, 2**20):
        fd = new_heap_file()
    heap = Heap(fd).own(fd)
    os.close(fd)
    assert heap.new(8192) is None
    assert heap.new(4096) is not None


def test_tensors_of_several_threads() -> None:
    """They begin and end at any moment, none in the place of another one, and the memory of all of them is back."""
    with local_ranks(1) as (local,):

        def begin_and_end(value: int) -> bool:
            tensors = [new(local, value, 1 + 1000 * (turn % 3)) for turn in range(20)]
            return all(bool((tensor == value).all()) for tensor in tensors)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(begin_and_end, range(40)))
        assert in_use(local.heap) == 0


def test_a_segment_keeps_its_length() -> None:
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
    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            new_segment_file(4096)
    monkeypatch.setattr(memory, "free_bytes", lambda: 100.0)
    with pytest.raises(OSError, match="of memory is free"):
        new_segment_file(4096)
    assert open_files() == before
