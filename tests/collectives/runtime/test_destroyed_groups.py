"""Groups that are destroyed: they are gone with all that was theirs, and what comes next is refused and says why."""

import gc
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.ranks import RankPool
from tests.refusals import said_by


def new_group(backend: str) -> dist.ProcessGroup:
    """A new group of all ranks."""
    made = dist.new_group(backend=backend, timeout=timedelta(seconds=10))
    assert isinstance(made, dist.ProcessGroup)
    return made


def called_on_destroyed(group: dist.ProcessGroup, backend: str) -> set[str]:
    """Return the errors of our calls on a destroyed group: one that had done collectives, and one that had not."""
    messages = set()
    for used in (True, False):
        other = new_group(backend)
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


def gone_at_once(_: dist.ProcessGroup, transport: str) -> bool:
    """Whether a group that made calls is gone when it is destroyed, without the garbage collector."""
    gc.disable()
    try:
        other = new_group("gloo")
        collectives.use_transport(transport, other)
        tensor = torch.ones(1000)
        collectives.all_reduce(tensor, group=other, algorithm="ring")
        collectives.all_reduce(tensor, group=other, algorithm="ring", async_op=True).wait()
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
