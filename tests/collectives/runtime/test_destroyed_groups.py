"""Groups that are destroyed: they are gone with all that was theirs, and what comes next is refused and says why."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.collectives.shared_groups import another_group, finish
from tests.ranks import RankPool
from tests.refusals import said_by


def called_on_destroyed(group: dist.ProcessGroup, backend: str) -> set[str]:
    """Return the errors of our calls on a destroyed group: one that had done collectives, and one that had not."""
    messages = set()
    for used in (True, False):
        other = another_group(group, backend)
        if used:
            collectives.all_reduce(torch.ones(3), group=other)
        dist.barrier(group)  # a rank that leaves while another still connects ends that one's attempt
        dist.destroy_process_group(other)
        messages.add(said_by(ValueError, collectives.all_reduce, torch.ones(3), group=other))
        messages.add(said_by(ValueError, collectives.broadcast, torch.ones(3), 0, group=other))
        messages.add(said_by(ValueError, collectives.barrier, other))
    return messages


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_a_destroyed_group_is_refused(trio: RankPool, backend: str) -> None:
    """By every call, whether or not the group had been used."""
    message = "group: the process group has been destroyed; call its collectives before dist.destroy_process_group"
    assert trio.run(called_on_destroyed, backend) == [{message}] * 3


def gone_at_once(group: dist.ProcessGroup, transport: str) -> bool:
    """Whether a group that made calls is gone when it is destroyed, without the garbage collector."""
    gc.disable()
    try:
        other = another_group(group)
        collectives.use_transport(transport, other)
        for async_op in (False, True):
            finish(collectives.all_reduce(torch.ones(1000), group=other, algorithm="ring", async_op=async_op))
        known = weakref.ref(other)
        dist.barrier(other)
        dist.destroy_process_group(other)
        del other
        return known() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("transport", ["gloo", "auto"])
def test_a_destroyed_group_is_gone_at_once(trio: RankPool, transport: str) -> None:
    """With its threads: one of Gloo's that is left when the interpreter ends may abort the program (torch 2.13)."""
    assert trio.run(gone_at_once, transport) == [True] * 3
