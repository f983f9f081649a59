"""Groups of which some ranks share memory, or all, whatever the environment says.

To be made in the cases of a `RankPool`, by all of its ranks.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import collectives
from collectives.runtime import sharing, state_of
from collectives.runtime.sharing import SLOT, SharedBy, Sharing
from collectives.shared_memory import LocalRanks

ONE_HOST = (0, 0, 0, 0, 0)  # the host of each rank
PAIRS = (0, 0, 1, 1, 2)  # two with two ranks each, and one with a rank alone
SMALL_SLOT = 4096
_KEPT: dict[Any, dist.ProcessGroup | None] = {}


def fresh_group(num_ranks: int, timeout_s: float = 60.0, backend: str = "gloo") -> dist.ProcessGroup | None:
    """A group of the first ranks that has not begun; None on the others."""
    group = dist.new_group(list(range(num_ranks)), timeout=timedelta(seconds=timeout_s), backend=backend)
    return group if isinstance(group, dist.ProcessGroup) else None


def another_group(group: dist.ProcessGroup, backend: str = "gloo") -> dist.ProcessGroup:
    """A group of the same ranks that has not begun."""
    other = fresh_group(group.size(), backend=backend)
    assert other is not None
    return other


def set_timeout(group: dist.ProcessGroup, timeout_s: float) -> None:
    """For what comes after its first collectives."""
    distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)


def finish(*works: collectives.Work | None) -> None:
    """Wait for the calls that are under way."""
    for work in works:
        if work is not None:
            work.wait()


def lent(group: dist.ProcessGroup, value: float = 1.0, length: int = 1000) -> torch.Tensor:
    """(length,): a tensor in memory that ranks share."""
    return collectives.empty(length, group=group).fill_(value)


@contextmanager
def on_hosts(rank: int, hosts: Sequence[int]) -> Iterator[None]:
    """In the block this rank takes itself to be on one of several hosts; `hosts`: of each rank."""
    with mock.patch.object(sharing, "this_host", return_value=f"host {hosts[rank]}"):
        yield


@contextmanager
def slots_of(slot_bytes: int) -> Iterator[None]:
    """In the block groups that begin have slots of that size; 0 for that of every program."""
    with mock.patch.dict(os.environ, {SLOT: str(slot_bytes)} if slot_bytes else {}):
        yield


def sharing_group(
    num_ranks: int, transport: str = "auto", hosts: Sequence[int] = ONE_HOST, slot_bytes: int = 0, backend: str = "gloo"
) -> dist.ProcessGroup | None:
    """A new group of the first ranks, which have found out who shares memory; None on the others."""
    group = fresh_group(num_ranks, backend=backend)
    if group is None:
        return None
    collectives.use_transport(transport, group)
    with on_hosts(group.rank(), hosts), slots_of(slot_bytes):
        collectives.all_reduce(torch.ones(1), group=group)
    return group


def kept_group(num_ranks: int, *arguments: Any) -> dist.ProcessGroup | None:
    """The same, made once in this process."""
    key = num_ranks, *arguments
    if key not in _KEPT:
        _KEPT[key] = sharing_group(num_ranks, *arguments)
    return _KEPT[key]


def shared_by(group: dist.ProcessGroup) -> SharedBy:
    """Who shares memory in a group that has begun."""
    return state_of(group).part(Sharing).of(group)


def local_ranks(group: dist.ProcessGroup) -> LocalRanks:
    """Return the ranks that share memory with this one."""
    local = shared_by(group).local
    assert local is not None, "no rank shares memory with this one"
    return local
