"""Memory of tensors that ranks share: who sees it, when it is back, and what a rank that fails may do to it."""

import errno
import gc
import os
import resource
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from collectives.shared_memory import LocalRanks
from collectives.shared_memory.local_ranks import FailedLenderError
from tests.collectives.shared_memory.test_local_ranks import TOKEN, local_ranks, open_portions


def new(local: LocalRanks, value: float, length: int = 8) -> torch.Tensor:
    """(length,): a tensor in a region of that rank."""
    return local.regions.new(4 * length).view(torch.float32).fill_(value)


def lend(local: LocalRanks, tensor: torch.Tensor, peer: int) -> int:
    """Publish the tensor where it is."""
    location = local.lend(tensor)
    assert location is not None
    local.publish(peer, 0, location)
    return location


def borrow(local: LocalRanks, peer: int, length: int = 8) -> torch.Tensor:
    """(length,): what that rank has published."""
    return local.view(local.wait_for(peer, 0), length, torch.float32)


def end_portion(ranks: Sequence[LocalRanks]) -> None:
    """All of them have read, and so none waits for another."""
    for local in ranks:
        local.close_portion()
    for local in ranks:
        local.take_back()


def pass_portion(ranks: Sequence[LocalRanks]) -> None:
    """One in which nothing is read."""
    open_portions(list(ranks))
    end_portion(ranks)


def mapped() -> int:
    """How many files of ours this process has in its memory."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("/memfd:collectives")


def open_files() -> int:
    """How many this process has."""
    return len(os.listdir("/proc/self/fd"))


def test_views_are_found_where_they_are() -> None:
    """With an offset, in another dtype, and of more than one granule; what is no part of the memory is not."""
    with local_ranks(2) as ranks:
        tensor = new(ranks[0], 0.0, 2_000_000)
        tensor.copy_(torch.arange(2_000_000))
        open_portions(ranks)
        for part in (tensor[7:], tensor[1_999_990:], tensor.view(-1, 2)[5:], tensor.view(torch.int64)[3:]):
            location = ranks[0].lend(part)
            assert location is not None
            ranks[0].publish(1, 0, location)
            view = ranks[1].view(ranks[1].wait_for(0, 0), part.numel(), part.dtype)
            assert torch.equal(view, part.reshape(-1))
            assert view.data_ptr() != part.data_ptr()
        assert ranks[0].lend(tensor[3:3]) is not None
        assert ranks[0].lend(tensor.clone()) is None
        assert ranks[1].lend(tensor) is None


def test_memory_is_back_with_the_last_view() -> None:
    """On all ranks, once they have begun another portion; and nothing is open any more."""
    with local_ranks(3) as ranks:
        maps, files = mapped(), open_files()
        tensor = new(ranks[0], 1.0)
        assert open_files() == files + 1
        open_portions(ranks)
        lend(ranks[0], tensor, 1)
        assert borrow(ranks[1], 0).sum() == 8
        end_portion(ranks)
        view = tensor[3:]
        del tensor
        for _ in range(3):
            pass_portion(ranks)
        assert mapped() == maps + 2
        del view
        for _ in range(2):
            pass_portion(ranks)
        assert (mapped(), open_files()) == (maps, files)
        new(ranks[0], 1.0)  # nobody has heard of it
        assert (mapped(), open_files()) == (maps, files)


def test_a_rank_that_never_sleeps_hears_of_regions() -> None:
    """Its sockets do not fill with regions that it never reads, which would keep their memory, and in time be full."""
    with local_ranks(3) as ranks:
        maps, files = mapped(), open_files()
        for turn in range(1000):
            tensor = new(ranks[0], turn)
            open_portions(ranks)
            lend(ranks[0], tensor, 1)
            assert borrow(ranks[1], 0)[0] == turn
            end_portion(ranks)
            del tensor
        assert mapped() <= maps + 6
        for _ in range(2):
            pass_portion(ranks)
        assert (mapped(), open_files()) == (maps, files)


def test_a_tensor_outlives_its_group_and_not_the_segment() -> None:
    """It stays as it is, and keeps no memory but its own."""
    maps = mapped()
    with local_ranks(2) as ranks:
        tensor = new(ranks[0], 3.0)
        unsent = new(ranks[1], 4.0)
        open_portions(ranks)
        lend(ranks[0], tensor, 1)
        assert borrow(ranks[1], 0)[0] == 3
        end_portion(ranks)
    del ranks
    assert mapped() == maps + 2
    assert (tensor.sum(), unsent.sum()) == (24, 32)
    del tensor, unsent
    assert mapped() == maps


def test_a_forked_process_releases_nothing() -> None:
    """As one that loads data, which drops its copy of the tensor."""
    with local_ranks(2) as ranks:
        tensor = new(ranks[0], 1.0)
        open_portions(ranks)
        lend(ranks[0], tensor, 1)
        assert borrow(ranks[1], 0)[0] == 1
        end_portion(ranks)
        maps = mapped()
        child = os.fork()
        if child == 0:
            del tensor
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for _ in range(3):
            pass_portion(ranks)
        assert mapped() == maps
        open_portions(ranks)
        lend(ranks[0], tensor.fill_(2), 1)
        assert borrow(ranks[1], 0)[0] == 2


@contextmanager
def limit_on_files(more: int) -> Iterator[None]:
    """In the block only so many more can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = [os.open(os.devnull, os.O_RDONLY)]
    while fillers[-1] < last:  # so that there is no gap below
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(last, *fillers) + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_limit_on_open_files(more: int) -> None:
    """It fails when the region is made, or read; whoever has not got it can still say that it has failed."""
    with local_ranks(2) as ranks:
        tensor = new(ranks[0], 1.0)
        open_portions(ranks)
        lend(ranks[0], tensor, 1)
        files = open_files()
        with limit_on_files(more):
            for _ in range(2):
                with pytest.raises(OSError, match="Too many open files") as error:
                    ranks[0].regions.new(1)
                assert error.value.errno == errno.EMFILE
            if more == 2:  # one of another rank can still be read
                assert borrow(ranks[1], 0).sum() == 8
                return
            with pytest.raises(RuntimeError, match="cannot be mapped: the limit on open files or memory"):
                borrow(ranks[1], 0)
            ranks[1].fail()
        assert open_files() < files
        ranks[0].close_portion()
        with pytest.raises(RuntimeError, match="the connection is closed: rank 1 has yet to read"):
            ranks[0].take_back()


def test_more_than_there_is() -> None:
    """It is refused, where Linux would rather end processes; other memory can be had afterwards."""
    with local_ranks(2) as ranks:
        for size_bytes in (2**44, 2**60):
            with pytest.raises(OSError, match="of memory is free"):
                ranks[0].regions.new(size_bytes)
        assert new(ranks[0], 1.0).sum() == 8


def test_what_is_made_of_the_memory_of_one_that_failed_is_not_passed_on() -> None:
    """Nor returned: it may have been changed when it was read. Those who read none of it have nothing to do with it."""
    with local_ranks(4) as ranks:
        tensor = new(ranks[0], 1.0)
        open_portions(ranks)
        lend(ranks[0], tensor, 1)
        ranks[0].fail()
        tensor.fill_(99.0)
        location, place = ranks[1].allocate(8, torch.float32)
        place.copy_(borrow(ranks[1], 0))
        with pytest.raises(FailedLenderError, match="rank 0 has failed, and may have overwritten"):
            ranks[1].publish(2, 0, location)
        assert ranks[2]._words[1][ranks_record(ranks[1])] != ranks[1]._stamp
        ranks[1].close_portion()
        with pytest.raises(FailedLenderError):
            ranks[1].take_back()
        ranks[3].publish(2, 0, location)
        ranks[3].take_back()


def ranks_record(local: LocalRanks) -> int:
    """Where the stamp of the first record is."""
    from collectives.shared_memory.segment import record_place

    return record_place(local.portion, 0) + 1


def test_who_lends_waits_until_all_have_finished() -> None:
    """And if one of them has done something else, it hears of that."""
    with local_ranks(3, timeout_s=0.1) as ranks:
        tensor = new(ranks[0], 1.0)
        ranks[0].open_portion(TOKEN)
        lend(ranks[0], tensor, 1)
        ranks[0].close_portion()
        with pytest.raises(RuntimeError, match=r"^timed out after 0\.1 s: ranks 1, 2 have yet to read"):
            ranks[0].take_back()
        for local, token in ((ranks[1], TOKEN), (ranks[2], 7)):
            local.open_portion(token)
            local.close_portion()
        with pytest.raises(RuntimeError, match="rank 2 has made other calls of this group than this rank"):
            ranks[0].take_back()


def test_a_tensor_of_which_others_cannot_be_told(caplog: pytest.LogCaptureFixture) -> None:
    """It is copied from then on, and the log says why; those that come when others have listened are not."""
    with local_ranks(2) as ranks, caplog.at_level("DEBUG", "collectives"):
        ranks[0]._sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        open_portions(ranks)
        tensors = [new(ranks[0], 1.0)]
        while ranks[0].lend(tensors[-1]) is not None:
            tensors.append(new(ranks[0], 1.0))
        assert ranks[0].lend(tensors[-1]) is None
        assert ranks[0].lend(tensors[0]) is not None
        assert "rank 0 copies a tensor that others cannot be told of: " in caplog.text
        end_portion(ranks)
        del tensors[1:]
        for _ in range(2):
            pass_portion(ranks)
        assert ranks[0].lend(tensors[0]) is not None
        assert ranks[0].lend(new(ranks[0], 1.0)) is not None


def test_tensors_end_in_several_threads() -> None:
    """The memory of all of them is back."""
    with local_ranks(2) as ranks:
        maps = mapped()
        tensors = [new(ranks[0], 1.0) for _ in range(200)]
        open_portions(ranks)
        for tensor in tensors:
            lend(ranks[0], tensor, 1)
        end_portion(ranks)
        del tensor
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: tensors.pop() is None, range(200)))
        for _ in range(2):
            pass_portion(ranks)
        assert mapped() == maps
