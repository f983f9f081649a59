"""Ranks that are started again meet each other, not what earlier ones have left in torchrun's store."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from trainers.launch.attempt import attempt_store

NUM_RANKS = 3


@pytest.fixture
def store() -> dist.TCPStore:
    """As torchrun's agent has it."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))


def meet(store: dist.TCPStore, late: int, number: int) -> list[str]:
    """One attempt: what each rank reads that rank 0 wrote; one of the ranks comes late."""

    def rank(own: int) -> str:
        if own == late:
            time.sleep(0.1)
        client = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=30))
        mine = attempt_store(client, own, NUM_RANKS, 30.0)
        if own == 0:
            mine.set("number", str(number))
        return mine.get("number").decode()

    with ThreadPoolExecutor(NUM_RANKS) as pool:
        return list(pool.map(rank, range(NUM_RANKS)))


@pytest.mark.parametrize("late", range(NUM_RANKS))
def test_no_rank_finds_what_an_earlier_attempt_wrote(store: dist.TCPStore, late: int) -> None:
    """Whichever comes last, and may still seem to be as it was."""
    for number in range(3):
        assert meet(store, late, number) == [str(number)] * NUM_RANKS


def test_a_rank_may_have_died_before_the_others_came(store: dist.TCPStore) -> None:
    """Then it was there once more often than they."""
    client = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=30))
    with pytest.raises(RuntimeError):
        attempt_store(client, 1, NUM_RANKS, 0.05)
    with pytest.raises(RuntimeError, match=r"no word of rank 1, 2 in 0.05 s"):
        attempt_store(client, 0, NUM_RANKS, 0.05)
    assert meet(store, 1, 7) == ["7"] * NUM_RANKS
