"""Ranks that leave: what is over stays over, and what comes next fails and says why."""

import gc
import os
import time
import weakref
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives import CollectiveError
from collectives.runtime.preposted import EagerBuffer, PrepostedReceives
from tests.forked import Answer, Leaving
from tests.ranks import RankPool, Ranks, whole_group_on
from tests.refusals import said_by


def wait_until_gone(group: dist.ProcessGroup, peer: int) -> None:
    """Until no receive from `peer` can be posted any more; the tag is one that nobody else uses."""
    while True:
        try:
            group.recv([torch.zeros(1)], peer, 0x7FFF)
        except RuntimeError:
            return
        time.sleep(0.01)


def left_behind(group: dist.ProcessGroup, call: Callable[[dist.ProcessGroup], torch.Tensor]) -> tuple[float, str]:
    """The sum of a collective whose peers leave before this rank has posted anew, and the error of the next one."""
    call(group)
    if group.rank() != 0:
        call(group)
        os._exit(0)
    repost = PrepostedReceives.repost

    def late(preposted: PrepostedReceives, group: dist.ProcessGroup, peer: int, tag: int, buffer: EagerBuffer) -> None:
        wait_until_gone(group, peer)
        repost(preposted, group, peer, tag, buffer)

    PrepostedReceives.repost = late  # type: ignore[method-assign]
    total = call(group).sum().item()
    return total, said_by(CollectiveError, call, group)


def summed(group: dist.ProcessGroup) -> torch.Tensor:
    """A sum whose last transfer comes from the rank that leaves."""
    tensor = torch.ones(4)
    collectives.all_reduce(tensor, group=group)
    return tensor


def summed_by_pairs(group: dist.ProcessGroup) -> torch.Tensor:
    """The same in one exchange."""
    tensor = torch.ones(4)
    collectives.all_reduce(tensor, group=group, algorithm="recursive_doubling", async_op=True).wait()
    return tensor


@pytest.mark.parametrize("call", [summed, summed_by_pairs])
def test_a_finished_collective_stays_finished(call: Callable[..., torch.Tensor]) -> None:
    """The peer leaves when it has its own result: this rank has its own, too, and its next call names that peer."""
    with RankPool(2, peer_timeout_s=20.0) as pool:
        pool.start(left_behind, call)
        answers = pool.answers([0], timeout_s=60)
    good, report = answers[0]
    assert good, report
    total, message = report
    assert total == 8.0
    assert "rank 1 failed: " in message
    assert message.endswith("; the first rank to stop responding was rank 1")


def left_at_once(backend: str, calls: int) -> Leaving:
    """A few collectives, and the end of the program."""
    on = whole_group_on(backend, timeout_s=20.0)
    for index in range(calls):
        tensor = torch.full((1000 + index,), 1.0)
        if backend == "ring":
            dist.all_reduce(tensor, group=on)
        else:
            collectives.all_reduce(tensor, group=on)
        assert (tensor == dist.get_world_size()).all()
    return Leaving(calls, "return")


@pytest.mark.parametrize(("calls", "backend"), [(1, "ring"), pytest.param(5, "gloo", marks=pytest.mark.slow)])
def test_programs_that_end_after_their_last_collective(backend: str, calls: int) -> None:
    """All ranks leave, each as soon as it is done: no one of them gets an error, and all interpreters end well."""
    for _ in range(2):
        with Ranks(3, 20.0) as ranks:
            ranks.start(left_at_once, backend, calls)
            answers = ranks.answers(range(3), 60)
            assert answers == dict.fromkeys(range(3), Answer(True, calls)), ranks.remains()
            assert ranks.codes() == [0, 0, 0], ranks.remains()


def called_on_destroyed(group: dist.ProcessGroup, backend: str) -> list[str]:
    """Return the errors of our calls on a destroyed group: one that had done collectives, and one that had not."""
    messages = []
    for used in (True, False):
        other = dist.new_group(list(range(group.size())), backend=backend, timeout=timedelta(seconds=10))
        if used:
            collectives.all_reduce(torch.ones(3), group=other)
        dist.barrier(group)  # a rank that leaves while another still connects ends that one's attempt
        dist.destroy_process_group(other)
        for call in (collectives.all_reduce, collectives.broadcast):
            arguments = {"group_src": 0} if call is collectives.broadcast else {}
            messages.append(said_by(ValueError, call, torch.ones(3), group=other, **arguments))
        with pytest.raises(ValueError, match="destroyed"):
            collectives.barrier(other)
    return messages


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_a_destroyed_group_is_refused(backend: str) -> None:
    """By every call, whether or not the group had been used."""
    with RankPool(2) as pool:
        for messages in pool.run(called_on_destroyed, backend):
            assert set(messages) == {
                "group: the process group has been destroyed; call its collectives before dist.destroy_process_group"
            }


def gone_at_once(group: dist.ProcessGroup, transport: str) -> bool:
    """Whether a group that made calls is gone when it is destroyed, without the garbage collector."""
    gc.disable()
    other = dist.new_group(list(range(group.size())), backend="gloo", timeout=timedelta(seconds=10))
    collectives.use_transport(transport, other)
    tensor = torch.ones(1000)
    collectives.all_reduce(tensor, group=other, algorithm="ring")
    collectives.all_reduce(tensor, group=other, algorithm="ring", async_op=True).wait()
    known = weakref.ref(other)
    dist.barrier(other)
    dist.destroy_process_group(other)
    del other
    gone = known() is None
    gc.enable()
    return gone


@pytest.mark.parametrize("transport", ["gloo", "auto"])
def test_a_destroyed_group_is_gone_at_once(transport: str) -> None:
    """With its threads: one of Gloo's that is left when the interpreter ends may abort the program (torch 2.13)."""
    with RankPool(2) as pool:
        assert pool.run(gone_at_once, transport) == [True, True]
