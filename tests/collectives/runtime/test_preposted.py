"""Short messages, whose receives are posted before the call, on Gloo; and the tags of messages."""

import time
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.runtime import Tag, messages, state_of
from collectives.runtime.messages import FINGERPRINT_SHIFT, SIZE_CLASS_SHIFT, SIZE_CLASSES, eager_tag, numbered_tag
from tests.collectives.shared_groups import finish, kept_group, sharing_group
from tests.ranks import RankPool
from tests.refusals import said_by

MIN, COPIED, MAX = messages.MIN_BUFFER_BYTES, messages.MAX_EAGER_COPY_BYTES, messages.MAX_EAGER_BYTES


def buffers(group: dist.ProcessGroup) -> list[tuple[int, int]]:
    """How many buffers of how many bytes this rank keeps, for each peer and size class."""
    of_peers = state_of(group).part(messages.PrepostedReceives)._buffers
    return [(len(kept), len(kept[0].memory)) for of_tags in of_peers for kept in of_tags.values()]


def called_often(_: dist.ProcessGroup, algorithm: str, length: int) -> None:
    """Many calls, to some of which rank 0 comes late."""
    group = sharing_group(3, "gloo")  # of its own, as below
    if group is None:
        return
    before = sum(count * size for count, size in buffers(group))
    for turn in range(40):
        if turn % 10 == 0 and group.rank() == 0:
            time.sleep(0.02)  # not to wait for a result, but to be late
        tensor = torch.full((length,), float(turn + group.rank()))
        collectives.all_reduce(tensor, group=group, algorithm=algorithm)
        assert (tensor == 3.0 * turn + 3).all()
        if turn == 5:
            early = buffers(group)
    assert buffers(group) == early != []
    more = sum(count * size for count, size in early) - before
    assert more <= 2 * 4 * max(MIN, 2 * 4 * length)  # two peers, four buffers


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "direct"])
@pytest.mark.parametrize("length", [1, 5000])
def test_buffers_are_used_again(ranks: RankPool, algorithm: str, length: int) -> None:
    """No more of them after many calls than after a few, no more memory than is stated, and results are right."""
    ranks.run(called_often, algorithm, length)


def of_many_sizes(_: dist.ProcessGroup) -> list[bool]:
    """Broadcasts, reduces and sums under way at once, of lengths round the bounds of size classes, in two dtypes."""
    group = kept_group(4, "gloo")
    if group is None:
        return []
    right, works, rank = [], [], group.rank()
    for turn in range(3):
        expected = []
        for length in (edge // 4 + more for edge in (MIN, COPIED, MAX, 2 * MAX) for more in (-4, 0, 1)):
            places = torch.arange(length) % 64
            passed, reduced, rounded, summed = (places.double().float() + rank for _ in range(4))
            passed += turn
            works += [
                collectives.broadcast(passed, group_src=2, group=group, async_op=True),
                collectives.reduce(reduced, group_dst=1, group=group, async_op=True),
                collectives.all_reduce(summed, group=group, algorithm="recursive_doubling", async_op=True),
                collectives.reduce(rounded, group_dst=3, group=group, wire=torch.bfloat16, async_op=True),
            ]
            total = 4.0 * places + 6
            expected += [(passed, places + 2.0 + turn), (summed, total)]
            expected += [(result, total) for result, root in ((reduced, 1), (rounded, 3)) if rank == root]
        finish(*works)
        right += [torch.equal(result, wanted) for result, wanted in expected]
    return right


def test_messages_of_all_sizes(ranks: RankPool) -> None:
    """Rooted collectives, whose messages carry a stamp in front or in the tag, and the calls after them."""
    for right in ranks.run(of_many_sizes)[:4]:
        assert all(right)
        assert len(right) >= 72


def profiled(_: dist.ProcessGroup, every_thread: bool) -> None:
    """Many profiles that end while receives are still posted: sums are right, and sends and no receives are seen."""
    from torch._C._profiler import _ExperimentalConfig

    group = sharing_group(2, "gloo")  # of its own: calls of earlier tests take of the memory for eager messages
    if group is None:
        return
    tensor, names = torch.ones(2**15), set()
    for _ in range(40):
        with torch.profiler.profile(experimental_config=_ExperimentalConfig(profile_all_threads=every_thread)) as found:
            collectives.all_reduce(tensor, dist.ReduceOp.AVG, group)
        collectives.all_reduce(tensor, dist.ReduceOp.AVG, group)
        names |= {event.name for event in found.events()}
    assert (tensor == 1).all()
    assert names & {"gloo:recv", "gloo:send"} == {"gloo:send"}


@pytest.mark.parametrize("every_thread", [False, True])
def test_posted_receives_outlive_a_profile(ranks: RankPool, every_thread: bool) -> None:
    """Else the receives that are posted write into memory that was the profiler's: a crash, sooner or later."""
    ranks.run(profiled, every_thread)


def test_both_ends_know_the_size_class_from_the_size() -> None:
    """A power of two that is enough, and no larger than it must be; what is only copied is eager up to fewer bytes."""
    last = (MAX // MIN).bit_length()
    classes = {0: 1, 1: 1, MIN: 1, MIN + 1: 2, 2 * MIN: 2, 3 * MIN: 3, MAX: last, MAX + 1: 0}
    for size_bytes, size_class in classes.items():
        assert eager_tag(Tag.COLLECTIVE, size_bytes, reduces=True) == Tag.COLLECTIVE + (size_class << SIZE_CLASS_SHIFT)
    copied = [messages.is_eager(eager_tag(Tag.COLLECTIVE, COPIED + more, reduces=False)) for more in (0, 1)]
    assert copied == [True, False]


def test_a_finished_collective_stays_finished() -> None:
    """Where its peer leaves before the buffer is posted again: only who waits for what lands there is told."""
    group = mock.Mock(size=lambda: 2, recv=mock.Mock(side_effect=RuntimeError("connection closed")))
    buffer = messages.PrepostedReceives(group).take(group, 1, eager_tag(Tag.COLLECTIVE, 1, reduces=True))
    assert buffer.work is not None
    assert said_by(RuntimeError, buffer.work.wait, timedelta()) == "connection closed"


def test_what_a_tag_holds_can_be_told_apart() -> None:
    """Purpose, the largest size class, and a large number; or in its place, in 31 bits, the end of a digest."""
    assert len({int(tag) for tag in Tag}) == len(Tag)
    for purpose in Tag:
        tag = eager_tag(numbered_tag(purpose, 4095), MAX, reduces=True)
        assert 0 < tag & (1 << SIZE_CLASS_SHIFT) - 1 == purpose
        assert 0 < tag >> SIZE_CLASS_SHIFT & SIZE_CLASSES < SIZE_CLASSES
        assert tag >> FINGERPRINT_SHIFT == 4095
    stamped = numbered_tag(Tag.COLLECTIVE, 4095, stamped=True)
    first, second, last = (messages.digest_tag(stamped, digest) for digest in (2**61, 2**61 + 1, 2**62 - 1))
    assert max(stamped, first, second, last) < 2**31
    assert first != second
    for each in first, second:
        assert each & messages.STAMPED
        assert each & (1 << FINGERPRINT_SHIFT) - 1 == Tag.COLLECTIVE
