"""Sharing memory leaves nothing behind: neither files, nor threads, nor memory."""

import gc
import os
import re
import time
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.collectives.shared_groups import ONE_HOST, PAIRS, finish, local_ranks, sharing_group
from tests.ranks import RankPool

QUIET_S, SETTLED_WITHIN_S = 0.5, 10.0  # nothing changes for so long; at most so long is waited for that


class Holdings(NamedTuple):
    """Files, threads and mappings of a process."""

    files: int
    threads: int
    maps: int

    @classmethod
    def now(cls) -> "Holdings":
        """Return the holdings of this process."""
        maps = Path("/proc/self/maps").read_text().count("/memfd:collectives")
        return cls(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), maps)

    @classmethod
    def settled(cls) -> "Holdings":
        """The same, once it has stopped changing: what watches or connects a destroyed group ends a little later."""
        gc.collect()
        held, since = cls.now(), time.monotonic()
        deadline = since + SETTLED_WITHIN_S
        while time.monotonic() < min(since + QUIET_S, deadline):
            time.sleep(QUIET_S / 10)
            if (now := cls.now()) != held:
                held, since = now, time.monotonic()
        return held


def settled_twice(_: dist.ProcessGroup, hosts: tuple[int, ...]) -> list[tuple[Holdings, Holdings]]:
    """Return the holdings of this rank after two groups and after four, and in a group after few calls and many."""
    for turn in range(4):
        if turn == 2:
            early = Holdings.settled()
        if (group := sharing_group(4, "auto", hosts, 4096, ("gloo", "ring")[turn % 2])) is not None:
            local_ranks(group)
            collectives.all_reduce(torch.ones(5000), group=group)
            collectives.all_reduce(torch.ones(1000, 2)[:, 0], group=group, async_op=True).wait()
            dist.destroy_process_group(group)
            del group
    of_groups, group = (early, Holdings.settled()), sharing_group(4, "auto", hosts, 4096)
    if group is None:
        return [of_groups]
    tensors = [torch.ones(length) for length in (1, 100, 5000)]
    for turn in range(60):
        if turn == 20:
            early = Holdings.settled()
        algorithm = ("ring", "direct")[turn % 2]
        finish(collectives.all_reduce(tensors[turn % 3], group=group, algorithm=algorithm, async_op=turn % 5 == 0))
        tensors[turn % 3].fill_(1)
    assert early.maps >= 2
    return [of_groups, (early, Holdings.settled())]


def named_files() -> set[Path]:
    """Return the files in memory that have names, but not those of joblib, which other tests use at the same time."""
    return {path for path in Path("/dev/shm").glob("*") if not re.search("joblib|loky", path.name)}


@pytest.mark.parametrize("hosts", [ONE_HOST, PAIRS], ids=["one host", "several hosts"])
def test_groups_and_calls_leave_nothing(ranks: RankPool, hosts: tuple[int, ...]) -> None:
    """A few of the groups, and sixty calls."""
    before = named_files()
    for early, late in chain(*ranks.run(settled_twice, hosts)):
        assert late == early
    assert named_files() <= before
