"""Sharing memory leaves nothing behind: neither files, nor threads, nor memory."""

import os
import threading
import time
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.collectives.shared_groups import PAIRS, local_ranks, sharing_group
from tests.collectives.shared_memory.test_heap import mapped, open_files
from tests.ranks import RankPool

QUIET_S, SETTLED_WITHIN_S = 0.2, 10.0  # nothing changes for so long; at most so long is waited for that


class Holdings(NamedTuple):
    """Files, threads and mappings of a process."""

    files: int
    threads: int
    maps: int

    @classmethod
    def now(cls) -> "Holdings":
        """Return the holdings of this process."""
        maps = mapped()
        return cls(open_files(), threading.active_count(), maps)

    @classmethod
    def settled(cls) -> "Holdings":
        """The same, once it has stopped changing: Gloo closes the connections of a destroyed group a little later."""
        held, since = cls.now(), time.monotonic()
        deadline = since + SETTLED_WITHIN_S
        while time.monotonic() < min(since + QUIET_S, deadline):
            time.sleep(QUIET_S / 10)
            if (now := cls.now()) != held:
                held, since = now, time.monotonic()
        return held


def shared_memory_files() -> set[str]:
    """Files in memory that have names."""
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def called_often(_: dist.ProcessGroup, calls: int) -> tuple[Holdings, Holdings]:
    """Return the holdings of this rank after a few calls, and after many."""
    group = sharing_group(3, "auto")
    early = Holdings.settled()
    if group is None:
        return early, early
    tensors = [torch.ones(length) for length in (1, 100, 5000)]
    for turn in range(calls):
        if turn == 20:
            early = Holdings.settled()
        algorithm = ("ring", "direct")[turn % 2]
        work = collectives.all_reduce(tensors[turn % 3], group=group, algorithm=algorithm, async_op=turn % 5 == 0)
        if work is not None:
            work.wait()
        tensors[turn % 3].fill_(1)
    assert early.maps >= 3
    return early, Holdings.settled()


def judge(holdings: list[tuple[Holdings, Holdings]]) -> None:
    """Nothing grows."""
    for early, late in holdings:
        assert late == early


def test_calls_leave_nothing(ranks: RankPool) -> None:
    """A hundred of them."""
    judge(ranks.run(called_often, 100))


def made_and_destroyed(_: dist.ProcessGroup, groups: int, hosts: tuple[int, ...]) -> tuple[Holdings, Holdings]:
    """Return the holdings of this rank after a few groups, and after many."""
    for turn in range(groups + 3):
        if turn == 3:
            early = Holdings.settled()
        group = sharing_group(4, "auto", hosts, 4096)
        if group is not None:
            local_ranks(group)
            collectives.all_reduce(torch.ones(5000), group=group)
            dist.destroy_process_group(group)
            del group
    return early, Holdings.settled()


@pytest.mark.parametrize("hosts", [(0,) * 5, PAIRS], ids=["one host", "several hosts"])
def test_groups_leave_nothing(ranks: RankPool, hosts: tuple[int, ...]) -> None:
    """A few of them."""
    before = shared_memory_files()
    judge(ranks.run(made_and_destroyed, 3, hosts))
    assert shared_memory_files() <= before
