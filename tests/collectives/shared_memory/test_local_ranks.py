"""How the ranks of a host wait for each other: in threads of one process, which do it as processes do."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, combinations

import pytest
import torch

from collectives.shared_memory import TOKEN_BITS, LocalRanks, OtherCallError, PeerError, TimeLimit, memory
from collectives.shared_memory.local_ranks import DEDICATED_CORE, OVERSUBSCRIBED, poll_policy_of
from collectives.shared_memory.memory import ON_RANK, SLEEP_STATE, SLOTS, Heap, HostMemory, Segment, new_heap_file
from ringsim import machine
from tests.refusals import said_by

TOKEN = 2**TOKEN_BITS - 1


@contextmanager
def local_ranks(num_ranks: int, timeout_s: float = 60.0, is_open: bool = False) -> Iterator[list[LocalRanks]]:
    """All ranks of a host; is_open: with their first portion."""
    files = [(memory.new_segment_file(4096), new_heap_file()) for _ in range(num_ranks)]
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(num_ranks)]
    for low, high in combinations(range(num_ranks), 2):
        sockets[low][high], sockets[high][low] = socket.socketpair()
    limit, found = TimeLimit(timeout_s), []
    for rank in range(num_ranks):
        memories = {peer: HostMemory(Segment(words), Heap(heap)) for peer, (words, heap) in enumerate(files)}
        memories[rank].heap.own(files[rank][1])
        found.append(LocalRanks(rank, memories, sockets[rank], lambda: limit))
    for file in chain(*files):
        os.close(file)
    del memories
    if is_open:
        open_portions(found)
    try:
        yield found
    finally:
        for local in found:
            local.close()


def until_asleep(local: LocalRanks, what_for: int) -> None:
    """Wait until that rank sleeps."""
    while local._own_words[SLEEP_STATE] != what_for:
        time.sleep(0.001)


def send(local: LocalRanks, peer: int, index: int, value: float) -> None:
    """Publish a chunk with this one element."""
    location, place = local.allocate(1, torch.float32)
    place.fill_(value)
    local.publish(peer, index, location)


def receive(local: LocalRanks, peer: int, index: int) -> float:
    """The element."""
    return local.view(local.wait_for(peer, index), 1, torch.float32).item()


def open_portions(ranks: list[LocalRanks]) -> None:
    """On all of them."""
    for local in ranks:
        local.open_portion(TOKEN)


def pass_portion(local: LocalRanks) -> None:
    """On one of them, which has nothing to send or read."""
    local.open_portion(TOKEN)
    local.close_portion()


def test_a_rank_wakes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its sleep, when what it waits for is published, and not only by looking again after a while."""
    monkeypatch.setattr("collectives.shared_memory.local_ranks.RECHECK_S", 50.0)
    with local_ranks(3, is_open=True) as ranks, ThreadPoolExecutor(1) as thread:
        value = thread.submit(receive, ranks[0], 1, 0)
        until_asleep(ranks[0], ON_RANK + 1)
        send(ranks[2], 0, 0, 1.0)  # what another one publishes does not wake it
        assert not value.done()
        time.sleep(0.05)  # it sets the flag a moment before it sleeps
        send(ranks[1], 0, 0, 2.0)
        assert value.result(20) == 2.0
        assert ranks[0]._own_words[SLEEP_STATE] == memory.AWAKE


def test_one_that_is_missed_looks_again() -> None:
    """A rank that publishes may not see that another one is about to sleep."""
    with local_ranks(2, is_open=True) as ranks, ThreadPoolExecutor(1) as thread:
        value = thread.submit(receive, ranks[0], 1, 0)
        until_asleep(ranks[0], ON_RANK + 1)
        ranks[1]._words[0] = ranks[1]._own_words  # where it says that rank 0 is awake
        send(ranks[1], 0, 0, 3.0)
        assert value.result(20) == 3.0


SAYS_OTHER = r"^rank 1 has made other calls of this group than this rank$"


@pytest.mark.parametrize("tokens", [[(8, 7)], [(8, 7), (TOKEN, TOKEN)]], ids=["now", "before"])
@pytest.mark.parametrize("is_published", [False, True])
def test_another_collective(tokens: list[tuple[int, int]], is_published: bool) -> None:
    """A chunk of another collective is not taken, nor one after another; one that will never come is not awaited."""
    with local_ranks(2) as ranks:
        for pair in tokens:
            for local, token in zip(ranks, pair, strict=True):
                local.close_portion()
                local.open_portion(token)
        if is_published:
            send(ranks[1], 0, 0, 1.0)
        with pytest.raises(OtherCallError, match=SAYS_OTHER):
            ranks[0].wait_for(1, 0)


class LateBeginner(list[int]):
    """The words of a rank that begins its portion right after it has been looked whether it has."""

    def __getitem__(self, place: int) -> int:  # type: ignore[override]
        value = super().__getitem__(place)
        if place == memory.STARTED_STAMPS + 1:
            self[place] = 1 << TOKEN_BITS | TOKEN
        return value


def test_a_rank_that_begins_at_that_very_moment() -> None:
    """Is not taken for one that does something else."""
    with local_ranks(2, timeout_s=0.1) as ranks:
        ranks[0].open_portion(TOKEN)
        ranks[0]._words[1] = LateBeginner(ranks[1]._own_words)  # type: ignore[assignment]
        assert said_by(RuntimeError, ranks[0].wait_for, 1, 0) == "timed out after 0.1 s"


def test_another_collective_of_ranks_that_never_wait() -> None:
    """Whoever uses a slot again sees what the others have used it for."""
    with local_ranks(2) as ranks:
        for local, token in [*zip(ranks, (8, 7), strict=True)] * SLOTS:
            local.open_portion(token)
            local.close_portion()
        with pytest.raises(OtherCallError, match=SAYS_OTHER):
            ranks[0].open_portion(8)


def test_a_portion_waits_for_the_one_before_the_last() -> None:
    """On all ranks, and is woken by the last of them."""
    with local_ranks(3) as ranks, ThreadPoolExecutor(1) as thread:
        for _ in range(SLOTS):
            pass_portion(ranks[0])
        third = thread.submit(ranks[0].open_portion, TOKEN)
        until_asleep(ranks[0], memory.ON_PORTION)
        pass_portion(ranks[1])
        time.sleep(0.05)
        assert not third.done()
        pass_portion(ranks[2])
        assert third.result(20) is None


def test_a_portion_that_some_are_late_for() -> None:
    """The error names them."""
    with local_ranks(4, timeout_s=0.1) as ranks:
        for _ in range(SLOTS):
            pass_portion(ranks[0])
        pass_portion(ranks[2])
        said = said_by(PeerError, ranks[0].open_portion, TOKEN)
    assert said == "timed out after 0.1 s: ranks 1, 3 have yet to read what was sent before"


def test_more_portions_than_a_stamp_counts() -> None:
    """Nothing else happens after some days of small collectives."""
    with local_ranks(2) as ranks:
        for local in ranks:
            local.portion = local._own_words[0] = 2**32 - 3
        for turn in range(6):
            open_portions(ranks)
            send(ranks[0], 1, 0, turn)
            assert receive(ranks[1], 0, 0) == turn
            for local in ranks:
                local.close_portion()


def test_a_full_connection_wakes_as_well() -> None:
    """Nobody waits to write another byte there."""
    with local_ranks(2, is_open=True) as ranks:
        ranks[0]._own_words[SLEEP_STATE] = ON_RANK + 1
        thread = threading.Thread(target=lambda: [ranks[1].publish(0, 0, 0) for _ in range(300_000)], daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()


def test_a_child_does_not_keep_connections_open() -> None:
    """As a process that loads data would, for long after the rank is dead."""
    with local_ranks(2, is_open=True) as ranks:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        try:
            ranks[1].close()
            with pytest.raises(RuntimeError, match="the connection is closed"):
                ranks[0].wait_for(1, 0)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_who_ended_first() -> None:
    """One whose connections close without a word; who fails after that says so, and to those who see only that, too."""
    with local_ranks(4) as ranks:
        ranks[0].close()
        ranks[1].fail()
        assert ranks[1].first_gone == 0
        ranks[2]._sockets[0].close()  # what it would have learned there it has not, so far
        ranks[2]._poll.unregister(next(fd for fd, peer in ranks[2]._peer_of_fd.items() if peer == 0))
        ranks[2].fail()
        assert ranks[2].first_gone == 0
    with local_ranks(3) as ranks:  # one that fails for another reason, and those that fail because of it
        for local in ranks:
            local.fail()
        assert [local.first_gone for local in ranks] == [None] * 3


@pytest.mark.parametrize("cores", [2.0, 3.0, 4.5, 16.0])
def test_who_polls_is_what_doctor_says(cores: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With that many cores, or cores' worth of time in a container; the words of the finding are taken apart here."""
    monkeypatch.setattr("collectives.shared_memory.local_ranks.available_cores", lambda: cores)
    monkeypatch.setattr(machine, "available_cores", lambda: cores)
    advice = machine._cores().advice
    told = re.match(r"Up to (\d+) ranks have a core each, and poll while they wait, or up to (\d+) if they", advice)
    assert told, advice
    for is_beside, most in zip((False, True), map(int, told.groups()), strict=True):
        assert poll_policy_of(most, is_beside=is_beside) is DEDICATED_CORE
        assert poll_policy_of(most + 1, is_beside=is_beside) is OVERSUBSCRIBED
