"""How the ranks of a host find each other, and whom they refuse."""

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from collectives.shared_memory import Meeting
from collectives.shared_memory.memory import HostMemory
from tests.collectives.shared_memory.test_memory import open_files

NOBODY = 65534
Met = tuple[dict[int, HostMemory], dict[int, socket.socket]]


def outcomes(meetings: dict[int, Meeting], present: Iterable[int] | None = None) -> dict[int, "Future[Met]"]:
    """Return what becomes of the ranks that are present, by default all: the memories and connections that they get."""

    def attend(rank: int) -> Met:
        with meetings[rank]:
            return meetings[rank].meet({peer: other.name for peer, other in meetings.items() if peer != rank})

    with ThreadPoolExecutor(len(meetings)) as threads:
        return {rank: threads.submit(attend, rank) for rank in present or meetings}


def hang_up(results: Iterable[Met]) -> None:
    """Close all connections."""
    for _, sockets in results:
        for connection in sockets.values():
            connection.close()


def meetings_of(num_ranks: int, timeout_s: float = 60.0) -> dict[int, Meeting]:
    """Return a meeting of each rank."""
    return {rank: Meeting(rank, 4096, timeout_s) for rank in range(num_ranks)}


def test_each_has_the_memory_of_all() -> None:
    """Others read what a rank writes into its own segment and heap; and the connections lead to the right ranks."""
    before = open_files()
    results = [outcome.result() for outcome in outcomes(meetings_of(4)).values()]
    for rank, (memories, sockets) in enumerate(results):
        assert (sorted(memories), sorted(sockets)) == ([0, 1, 2, 3], [peer for peer in range(4) if peer != rank])
        own = memories[rank]
        own.segment.view(own.segment.slot_offset(0), 1, torch.int64).fill_(100 + rank)
        own.heap.view(4096, 1, torch.int64).fill_(200 + rank)
        for peer, connection in sockets.items():
            connection.sendall(bytes([10 * rank + peer]))
    for rank, (memories, sockets) in enumerate(results):
        for peer in sockets:
            segment, heap = memories[peer]
            assert segment.view(segment.slot_offset(0), 1, torch.int64).item() == 100 + peer
            assert heap.view(4096, 1, torch.int64).item() == 200 + peer
            assert sockets[peer].recv(1) == bytes([10 * peer + rank])
            assert not sockets[peer].get_inheritable()
    hang_up(results)
    del results, memories, own, segment, heap
    assert open_files() == before


@pytest.mark.parametrize("present", [[0], [2], [1, 2]], ids=["who waits to be called", "who calls", "both"])
def test_one_that_never_comes(present: list[int]) -> None:
    """OSError after the time that it has, and nothing is left open."""
    before = open_files()
    meetings = meetings_of(3, timeout_s=0.3)
    results = outcomes(meetings, present)
    for rank in set(meetings) - set(present):
        with meetings[rank]:
            pass
    assert open_files() == before
    with pytest.raises(TimeoutError, match="timed out"):
        results[present[0]].result()


def test_one_that_is_not_there() -> None:
    """Or that comes to the wrong place: it is refused."""
    with Meeting(1, 4096) as high, pytest.raises(ConnectionRefusedError):
        high.meet({0: "collectives-gone"})
    meetings = {0: Meeting(0, 4096), 1: Meeting(7, 4096)}
    errors = [str(outcome.exception()) for outcome in outcomes(meetings).values()]
    assert errors[0] == "rank 7 connected, but one of ranks [1] was expected"


def test_one_that_has_ended_is_not_awaited() -> None:
    """A rank that has connected to all and hung up may have closed its socket; one that has not will not come."""
    meetings, began_s = meetings_of(3), time.monotonic()
    with meetings[2]:
        pass
    errors = [str(outcome.exception()) for outcome in outcomes(meetings, [0, 1]).values()]
    assert "rank 2 has ended, or cannot share memory" in errors
    assert time.monotonic() - began_s < 30


def test_one_that_is_late_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the others look whether it is still there."""
    monkeypatch.setattr("collectives.shared_memory.meeting.LOOK_S", 0.01)
    meetings = meetings_of(3)
    meet = meetings[2].meet

    def late(names: Mapping[int, str]) -> Met:
        time.sleep(0.3)
        return meet(names)

    meetings[2].meet = late  # type: ignore[method-assign]
    hang_up(outcome.result() for outcome in outcomes(meetings).values())


def test_one_that_is_done_early_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have closed its own socket while its connection still waits to be accepted."""
    monkeypatch.setattr("collectives.shared_memory.meeting.LOOK_S", 0.001)
    with Meeting(0, 4096) as low:
        with Meeting(1, 4096) as high:
            connection = high._connect(low.name)
        with connection, low._accepted({1: high.name}) as accepted:
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
        hang_up(outcome.result() for outcome in outcomes({0: low, 1: high}).values())
    with Meeting(0, 4096) as low:

        def go_to_another_user() -> None:
            Meeting(1, 4096, timeout_s=1.0).meet({0: low.name})

        assert as_nobody(go_to_another_user) == 13
