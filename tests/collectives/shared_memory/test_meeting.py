"""How the ranks of a host find each other, and whom they refuse."""

import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from collectives.shared_memory import Meeting
from collectives.shared_memory.heap import HostMemory
from collectives.shared_memory.segment import slot_offset
from tests.collectives.shared_memory.test_heap import open_files

NOBODY = 65534
Met = tuple[dict[int, HostMemory], dict[int, socket.socket]]


def met(meetings: list[Meeting]) -> list[Met]:
    """Return the memories and connections that all ranks get when all come."""
    names = {rank: meeting.name for rank, meeting in enumerate(meetings)}
    with ThreadPoolExecutor(len(meetings)) as threads:
        futures = [
            threads.submit(meeting.meet, {peer: name for peer, name in names.items() if peer != rank})
            for rank, meeting in enumerate(meetings)
        ]
        return [future.result() for future in futures]


def hang_up(results: list[Met]) -> None:
    """Close all connections."""
    for _, sockets in results:
        for connection in sockets.values():
            connection.close()


def test_each_has_the_memory_of_all() -> None:
    """Others read what a rank writes into its own segment and heap; and the connections lead to the right ranks."""
    before = open_files()
    with ExitStack() as opened:
        results = met([opened.enter_context(Meeting(rank, 4096)) for rank in range(4)])
    for rank, (memories, sockets) in enumerate(results):
        assert (sorted(memories), sorted(sockets)) == ([0, 1, 2, 3], [peer for peer in range(4) if peer != rank])
        own = memories[rank]
        own.segment.view(slot_offset(own.segment, 0), 1, torch.int64).fill_(100 + rank)
        own.heap.view(4096, 1, torch.int64).fill_(200 + rank)
        for peer, connection in sockets.items():
            connection.sendall(bytes([10 * rank + peer]))
    for rank, (memories, sockets) in enumerate(results):
        for peer in sockets:
            segment, heap = memories[peer]
            assert segment.view(slot_offset(segment, 0), 1, torch.int64).item() == 100 + peer
            assert heap.view(4096, 1, torch.int64).item() == 200 + peer
            assert sockets[peer].recv(1) == bytes([10 * peer + rank])
            assert not sockets[peer].get_inheritable()
    hang_up(results)
    del results, memories, own, segment, heap
    assert open_files() == before


def test_names_are_not_to_be_guessed() -> None:
    """Each is another one, with 128 random bits, and no file stands for it."""
    with Meeting(0, 4096) as one, Meeting(0, 4096) as other:
        assert one.name != other.name
        assert len(one.name) == len("collectives-") + 32
        assert not os.path.exists(one.name)


def refused(order: Callable[[Meeting, Meeting], Met]) -> OSError:
    """The error of a meeting that cannot be, which leaves nothing open."""
    before = open_files()
    low, high = Meeting(0, 4096, timeout_s=0.3), Meeting(1, 4096, timeout_s=0.3)
    with low, high, pytest.raises(OSError) as error:  # noqa: PT011  the kinds differ
        order(low, high)
    assert open_files() == before
    return error.value


def test_one_that_never_comes() -> None:
    """OSError after the time that it has, on the side that waits to be called, and on the one that calls."""
    assert isinstance(refused(lambda low, high: low.meet({1: high.name})), TimeoutError)
    assert isinstance(refused(lambda low, high: high.meet({0: low.name})), TimeoutError)
    assert isinstance(refused(lambda _, high: high.meet({0: "collectives-gone"})), ConnectionRefusedError)


def test_another_rank_than_was_expected() -> None:
    """Is refused."""

    def with_wrong_rank(low: Meeting, high: Meeting) -> Met:
        with Meeting(7, 4096, timeout_s=0.3) as seventh, ThreadPoolExecutor(1) as thread:
            other = thread.submit(seventh.meet, {0: low.name})
            try:
                return low.meet({1: high.name})
            finally:
                other.exception()

    assert str(refused(with_wrong_rank)) == "rank 7 connected, but one of ranks [1] was expected"


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_where_one_cannot_meet_the_others_do_not_wait(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It turns away those that wait for it, long before their time is over."""
    accept, connect = Meeting._accepted, Meeting._connect

    def no_accept(meeting: Meeting, missing: Mapping[int, str]) -> socket.socket:
        if meeting._rank == failing:
            raise OSError(24, "Too many open files")
        return accept(meeting, missing)

    def no_connect(meeting: Meeting, name: str) -> socket.socket:
        if meeting._rank == failing:
            raise OSError(24, "Too many open files")
        return connect(meeting, name)

    monkeypatch.setattr(Meeting, "_accepted", no_accept)
    monkeypatch.setattr(Meeting, "_connect", no_connect)
    meetings = [Meeting(rank, 4096, timeout_s=60.0) for rank in range(3)]
    began_s = time.monotonic()
    with ThreadPoolExecutor(3) as threads:

        def attend(rank: int) -> BaseException | None:
            with meetings[rank] as meeting:
                try:
                    hang_up([meeting.meet({peer: meetings[peer].name for peer in range(3) if peer != rank})])
                except OSError as error:
                    return error
            return None

        errors = list(threads.map(attend, range(3)))
    assert errors[failing] is not None
    assert time.monotonic() - began_s < 30


def test_one_that_has_ended_is_not_awaited() -> None:
    """A rank that has connected to all and hung up may have closed its socket; one that has not will not come."""
    began_s = time.monotonic()
    with ExitStack() as opened:
        low, middle = (opened.enter_context(Meeting(rank, 4096, timeout_s=60.0)) for rank in range(2))
        with Meeting(2, 4096) as dead:
            names = {0: low.name, 1: middle.name, 2: dead.name}
        with ThreadPoolExecutor(2) as threads:
            futures = [
                threads.submit(meeting.meet, {peer: name for peer, name in names.items() if peer != rank})
                for rank, meeting in enumerate([low, middle])
            ]
            errors = [str(future.exception()) for future in futures]
    assert "rank 2 has ended, or cannot share memory" in errors
    assert time.monotonic() - began_s < 30


def test_one_that_is_done_early_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have closed its own socket while its connection still waits to be accepted."""
    monkeypatch.setattr("collectives.shared_memory.meeting.LOOK_S", 0.001)
    with Meeting(0, 4096) as low:
        with Meeting(1, 4096) as high:
            names = {1: high.name}
            connection = high._connect(low.name)
        with connection, low._accepted(names) as accepted:
            assert accepted.recv(8) == (1).to_bytes(8, "little")


def as_nobody(do: Callable[[], None]) -> int:
    """The exit status of a child of another user that does this."""
    child = os.fork()
    if child == 0:
        try:
            os.setuid(NOBODY)
            do()
        except PermissionError:
            os._exit(13)
        except OSError:
            os._exit(5)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user: only root has one")
def test_another_user_gets_nothing() -> None:
    """It may connect, and is sent away; the ranks meet all the same. And no rank goes to a socket of another user."""
    with Meeting(0, 4096) as low, Meeting(1, 4096) as high:

        def intrude() -> None:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(5)
                connection.connect(f"\0{low.name}")
                connection.sendall((1).to_bytes(8, "little"))

        assert as_nobody(intrude) == 0
        hang_up(met([low, high]))
    with Meeting(0, 4096) as low:

        def go_to_another_user() -> None:
            Meeting(1, 4096, timeout_s=1.0).meet({0: low.name})

        assert as_nobody(go_to_another_user) == 13
