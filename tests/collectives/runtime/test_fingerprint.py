"""Fingerprints: ranks that are about to do different things all say so, and no message is taken for another's."""

import re
from contextlib import closing
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.calls.call import GroupRuntime
from collectives.runtime import TEXT_BYTES, CallCheck, FingerprintCheck, MismatchError, state_of
from collectives.runtime.messages import PrepostedReceives
from tests.collectives.shared_groups import another_group
from tests.forked import Nursery
from tests.fuzz.calls import Call, prepare
from tests.ranks import RankPool
from tests.refusals import said_by

MIXED_UP = (
    "the ranks do not agree on what to do: ranks 0, 2: [^;]*{}[^;]*; rank 1: [^;]*{}[^;]*; "
    "all ranks must make the same call with the same arguments"
)
# What ranks 0 and 2 call, what rank 1 calls, and what is said of the two.
PAIRS: dict[str, tuple[Call, Call, str, str]] = {
    "sizes": (Call(), Call(shape=(4,)), "all_reduce of 3 elements of torch.float32, SUM", "all_reduce of 4 elements"),
    "dtypes": (Call(), Call(dtype="int32"), "torch.float32", "torch.int32"),
    "ops": (Call(op="MAX"), Call(op="MIN"), "MAX", "MIN"),
    "roots": (Call("broadcast"), Call("broadcast", root=1), "of 3 elements of torch.float32, root 0", "root 1"),
    "algorithms": (Call(), Call(algorithm="two_shot"), "algorithm ring", "algorithm two_shot"),
    "what is added in": (Call(shape=(6,)), Call(shape=(6,), wire="bfloat16"), "SUM, algorithm", "in torch.bfloat16"),
    "collectives": (Call(), Call("all_gather_into_tensor"), "all_reduce of 3", "all_gather of 3 elements"),
    "a barrier": (Call(shape=(1,), algorithm="recursive_doubling"), Call("barrier"), "all_reduce of 1", "barrier"),
}


def disagreed(group: dist.ProcessGroup, backend: str, check: CallCheck) -> list[tuple[str, bool, list[float]]]:
    """Of each pair, the message, whether the tensors given are as before, and a sum afterwards."""
    group, results = another_group(group, backend), []
    if check is not CallCheck.NEW:  # which is the default
        collectives.check_calls(group, check)
    for number, (usual, other, *_) in enumerate(PAIRS.values()):
        call = other if group.rank() == 1 else usual
        issued = prepare(replace(call, asynchronous=number % 2 == 0), group, seed=0)
        message = said_by(MismatchError, issued.make_and_wait)
        after = torch.ones(2)
        collectives.all_reduce(after, group=group)
        results.append((message, issued.are_inputs_unchanged, after.tolist()))
    dist.destroy_process_group(group)
    return results


@pytest.mark.parametrize("backend", ["gloo", "ring"])
@pytest.mark.parametrize("check", [CallCheck.NEW, CallCheck.EVERY])
def test_all_are_told_the_same(trio: RankPool, backend: str, check: CallCheck) -> None:
    """Which ranks are about to do what; tensors are as before, and the group can be used on."""
    for (*_, usual, other), *results in zip(PAIRS.values(), *trio.run(disagreed, backend, check), strict=True):
        (message,) = {message for message, *_ in results}
        assert re.fullmatch(MIXED_UP.format(re.escape(usual), re.escape(other)), message), message
        assert [rest for _, *rest in results] == [[True, [3.0, 3.0]]] * 3


def agreed(group: dist.ProcessGroup) -> list[float]:
    """A checked sum of a list form and a tensor form, asynchronous ones in the queue while checking begins."""
    tensors = [torch.ones(50_000) for _ in range(10)]
    works = [collectives.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    collectives.check_calls(group)
    shares = [torch.ones(4)] * group.size()
    output = torch.zeros(4)
    if group.rank() == 0:  # two ways to say the same
        collectives.reduce_scatter(output, shares, group=group)
    else:
        collectives.reduce_scatter_tensor(output, torch.cat(shares), group=group)
    for work in works:
        work.wait()
    collectives.check_calls(group, CallCheck.NEW)
    collectives.all_reduce(output, group=group)
    return [*output.tolist(), *(float(tensor[-1]) for tensor in tensors)]


def test_agreeing_calls_pass(ranks: RankPool) -> None:
    """Also when checking begins with calls under way, which one rank may have done and another not yet."""
    assert ranks.run(agreed, num_ranks=3) == [[9.0] * 4 + [3.0] * 10] * 3


def exchanges(group: dist.ProcessGroup) -> dict[str, list[int]]:
    """How often fingerprints are compared in ten rounds of three calls, round by round, with each check."""
    counts: dict[str, list[int]] = {}
    compare = FingerprintCheck.compare
    for check in CallCheck:
        fresh = another_group(group)
        if check is not CallCheck.NEW:  # which is the default
            collectives.check_calls(fresh, check)
        with mock.patch.object(FingerprintCheck, "compare", autospec=True, side_effect=compare) as compared:
            for _ in range(10):
                collectives.all_reduce(torch.ones(5), group=fresh)
                collectives.all_reduce(torch.ones(5), dist.ReduceOp.MAX, fresh, async_op=True).wait()
                collectives.barrier(fresh)
                counts.setdefault(check.name, []).append(compared.call_count)
        dist.destroy_process_group(fresh)
    return counts


def test_known_calls_are_not_compared_again(trio: RankPool) -> None:
    """By default each of three calls is compared once."""
    expected = {"NEW": [3] * 10, "EVERY": [3 * turn for turn in range(1, 11)], "NONE": [0] * 10}
    assert trio.run(exchanges) == [expected] * 3


def many_lengths(group: dist.ProcessGroup) -> None:
    """Calls of many lengths."""
    group = another_group(group)
    with (
        mock.patch("collectives.runtime.agreement.MAX_KNOWN", 40),
        mock.patch("collectives.runtime.messages.LIMIT_BYTES", 2**19),
        mock.patch("collectives.runtime.chunks.MAX_KEPT", 30),
    ):
        for length in [*range(1, 60)] * 2:
            tensor = torch.full((length,), group.rank() + 1.0)
            collectives.all_reduce(tensor, group=group)
            assert (tensor == 6).all()
    of_peers = state_of(group).part(PrepostedReceives)._buffers
    kept = sum(len(buffer.memory) for of_tags in of_peers for buffers in of_tags.values() for buffer in buffers)
    assert kept <= 2 * (2**19 + 2**17)  # from two peers; those of the comparisons are beside the limit
    assert len(state_of(group).part(FingerprintCheck)._known) == 40
    (executor,) = state_of(group).part(GroupRuntime).executors.values()
    assert len(executor._layouts._known) == 30
    with mock.patch("collectives.runtime.chunks.MAX_KEPT_CHUNKS", 50):  # of exchanges, whose blocks may always be new
        for length in range(1, 9):
            collectives.all_to_all_single(torch.empty(3 * length), torch.ones(3 * length), group=group)
    *_, executor = state_of(group).part(GroupRuntime).executors.values()
    assert len(executor._layouts._known) == 50 // 9
    dist.destroy_process_group(group)


def test_calls_take_bounded_memory(trio: RankPool) -> None:
    """Calls beyond the limits are compared and laid out each time, or sent without receives posted ahead."""
    trio.run(many_lengths)


def long_words(group: dist.ProcessGroup) -> str:
    """Return the message for two long words that differ at the end."""
    return said_by(MismatchError, FingerprintCheck(group).compare, "x" * 2 * TEXT_BYTES + str(group.rank()))


def test_long_words_are_told_apart(ranks: RankPool) -> None:
    """As of a user's algorithm in a deep folder."""
    first, second = ranks.run(long_words, num_ranks=2)
    assert first == second
    assert "rank 0: xxx" in first
    assert "; rank 1: xxx" in first


def unfinished(group: dist.ProcessGroup) -> str:
    """Return the message by default with TORCH_DISTRIBUTED_DEBUG."""
    return said_by(MismatchError, collectives.all_reduce, torch.ones(3 + group.rank()), group=group)


@pytest.mark.slow
def test_on_by_default_when_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's own variable, which at DETAIL wraps every group in one of its own."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    # torch reads the variable when it is imported
    with closing(Nursery()) as home, RankPool(2, home=home) as pool:
        messages = pool.run(unfinished)
    assert messages[0] == messages[1]
    assert "rank 0: all_reduce of 3 " in messages[0]
