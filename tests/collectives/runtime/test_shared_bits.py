"""Over shared memory, and over some of it, results are to the bit those of Gloo and of the replay."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import collectives
from collectives.runtime.instructions import portion_bytes
from ringsim import Collective, Schedule, Transfer
from ringsim.schedule import replay
from tests.collectives.replayed_calls import NAMES, made, replayed
from tests.collectives.runtime.test_executor import Rows, assert_conforms, data, logged
from tests.collectives.shared_groups import ONE_HOST, PAIRS, SMALL_SLOT, kept_group, shared_by
from tests.fuzz.calls import REDUCING, Call
from tests.fuzz.draws import algorithms
from tests.fuzz.views import in_shared_memory
from tests.ranks import RankPool
from tests.ringsim.strategies import schedules

LENGTHS = (0, 1, 13, 1031)  # the last one takes several portions in a small slot
# dtype, operation, wire
KINDS = [
    ("float32", "SUM", ""),
    ("float64", "PRODUCT", ""),
    ("bfloat16", "SUM", ""),
    ("float16", "AVG", ""),
    ("int32", "MIN", ""),
    ("bool", "BOR", ""),
    ("complex64", "SUM", ""),
    ("float32", "SUM", "bfloat16"),
    ("float64", "MAX", "float16"),
]
ON_HOSTS = pytest.mark.parametrize("hosts", [ONE_HOST, PAIRS], ids=["one host", "several hosts"])


def call_of(name: str, algorithm: str, kind: tuple[str, str, str], length: int, seed: int) -> Call:
    """A call of that kind, as far as the collective has any; `seed` also tells its root and whether it waits."""
    dtype, op, wire = kind if name in REDUCING else (kind[0], "SUM", "")
    root = seed + 1 if name in {"broadcast", "reduce"} else 0
    call = Call(name, (length,), dtype, op, algorithm, root=root, wire=wire, values="zeros")
    return replace(call, asynchronous=seed % 2 == 0)


def every_algorithm(all_of_them: bool) -> list[Call]:
    """All lengths of each with calls of every kind, or two lengths with one kind after the other."""
    calls: list[Call] = []
    for name, algorithm in ((of, algorithm) for of in NAMES for algorithm in algorithms(of)):
        for length in LENGTHS if all_of_them else (LENGTHS[len(calls) // 2 % 3], LENGTHS[-1]):
            kinds = KINDS if all_of_them else [KINDS[len(calls) % len(KINDS)]]
            calls += [call_of(name, algorithm, kind, length, len(calls)) for kind in kinds]
    return calls


Answer = tuple[list[bytes], list[Call]]
Ranks = tuple[int, tuple[int, ...], int]  # how many, on which hosts, with slots of how many bytes


def compared(_: dist.ProcessGroup, where: Ranks, calls: list[Call]) -> Answer:
    """Return the result of each call over shared memory, and the calls with another one over Gloo, or if lent."""
    num_ranks, hosts, slot_bytes = where
    shared, by_gloo = kept_group(num_ranks, "auto", hosts, slot_bytes), kept_group(num_ranks, "gloo")
    if shared is None or by_gloo is None:
        return [], []
    assert shared_by(by_gloo).local is None
    assert (shared_by(shared).local is None) == (hosts[:num_ranks].count(hosts[shared.rank()]) == 1)
    results = [over(call, shared, seed) for seed, call in enumerate(calls)]
    others = [over(call, by_gloo, seed) for seed, call in enumerate(calls)]
    with in_shared_memory(shared):
        lent = [over(call, shared, seed) for seed, call in enumerate(calls)]
    different = [call for call, *three in zip(calls, results, others, lent, strict=True) if len(set(three)) > 1]
    return [hashlib.sha256(result).digest() for result in results], different


def over(call: Call, group: dist.ProcessGroup, seed: int) -> bytes:
    """The bits of this rank's result; nothing else may have changed."""
    issued = made(call, group, seed)
    assert not issued.problem(), (call, issued.problem())
    return issued.digest()


def check(ranks: RankPool, where: Ranks, calls: list[Call]) -> None:
    """All ranks agree with Gloo and with the replay."""
    num_ranks = where[0]
    answers = ranks.run(compared, where, calls, timeout_s=280)[:num_ranks]
    assert [different for _, different in answers] == [[]] * num_ranks
    for seed, (call, *digests) in enumerate(zip(calls, *(digests for digests, _ in answers), strict=True)):
        assert digests == [hashlib.sha256(result).digest() for result in replayed(call, seed, num_ranks)], call


@pytest.mark.parametrize(("num_ranks", "hosts"), [(3, PAIRS), (4, ONE_HOST)])
def test_every_algorithm(ranks: RankPool, num_ranks: int, hosts: tuple[int, ...]) -> None:
    """Nothing, one element, few, and several portions; other roots than 0; sums in other dtypes, and rounded."""
    check(ranks, (num_ranks, hosts, SMALL_SLOT), every_algorithm(all_of_them=False))


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "slot_bytes", "hosts"), [(3, SMALL_SLOT, PAIRS), (4, 2**21, ONE_HOST)])
def test_every_algorithm_with_every_kind(
    ranks: RankPool, num_ranks: int, slot_bytes: int, hosts: tuple[int, ...]
) -> None:
    """The same, with each dtype and operation."""
    check(ranks, (num_ranks, hosts, slot_bytes), every_algorithm(all_of_them=True))


def executed(_: dist.ProcessGroup, hosts: Sequence[int], shape: tuple[int, int], rows: Rows, length: int) -> tuple:
    """The rank's tensor after a listed schedule, and what it logged: (step, peer, chunk) applied, and sent.

    The same bits come of a tensor that is lent.
    """
    group = kept_group(shape[0], "auto", hosts, SMALL_SLOT)
    if group is None:
        return ()
    schedule = Schedule.from_transfers(Collective.ALL_REDUCE, "random", *shape, rows)
    result = logged(group, schedule, length)
    tensor = collectives.empty(length, group=group).copy_(data(group.rank(), length, torch.float32))
    collectives.execute(schedule, tensor, group=group)
    lent = tensor.clone()
    tensor.zero_()  # as a program may that has what it asked for
    assert torch.equal(lent, result[0])
    return result


@ON_HOSTS
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedules(max_ranks=4, max_chunks=3, max_steps=6, channels_of_a_pair=2))
def test_random_schedules_conform(ranks: RankPool, hosts: tuple[int, ...], schedule: Schedule) -> None:
    """Whatever the transfers: exchanges, several chunks to one rank in a step, overwritten and sent on."""
    rows, shape = [list(step) for step in schedule.steps], (schedule.num_ranks, schedule.num_chunks)
    results = ranks.run(executed, hosts, shape, rows, 7)
    assert_conforms(schedule, results[: schedule.num_ranks], 7)


@ON_HOSTS
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedules(max_ranks=4, max_chunks=3, max_steps=6, channels_of_a_pair=2), st.sampled_from([1031, 3000]))
def test_random_schedules_in_portions(ranks: RankPool, hosts: tuple[int, ...], schedule: Schedule, length: int) -> None:
    """Each portion executes all of the schedule on its part of every chunk."""
    rows, shape = [list(step) for step in schedule.steps], (schedule.num_ranks, schedule.num_chunks)
    buffers = [data(rank, length, torch.float32) for rank in range(schedule.num_ranks)]
    replay(schedule, buffers)
    results = ranks.run(executed, hosts, shape, rows, length)
    for rank, buffer in enumerate(buffers):
        assert torch.equal(results[rank][0], buffer), f"rank {rank}"


def in_turn(group: dist.ProcessGroup, lengths: list[int]) -> list[bool]:
    """All-reduces of several lengths, some of them under way at once, whose sums tell rank, place and call apart."""
    shared = kept_group(group.size(), "auto", ONE_HOST, SMALL_SLOT)
    works, tensors = [], []
    for turn, length in enumerate(lengths):
        tensors.append(torch.arange(length, dtype=torch.float64) * (group.rank() + 1) + turn)
        algorithm = ("ring", "direct", "recursive_doubling")[turn % 3]
        works.append(collectives.all_reduce(tensors[-1], group=shared, algorithm=algorithm, async_op=turn % 5 > 0))
    for work in works:
        if work is not None:
            work.wait()
    ranks, total = group.size(), sum(range(1, group.size() + 1))
    return [
        torch.equal(tensor, torch.arange(length, dtype=torch.float64) * total + ranks * turn)
        for turn, (tensor, length) in enumerate(zip(tensors, lengths, strict=True))
    ]


def test_slots_are_used_again(ranks: RankPool) -> None:
    """Long and short ones in turn."""
    lengths = [(37 * turn) % 23 * (101 if turn % 4 == 0 else 1) for turn in range(150)]
    for right in ranks.run(in_turn, lengths):
        assert all(right)


COPIED_AND_ADDED_TO = [
    [Transfer(0, 1, 0, False), Transfer(2, 1, 0, True)],
    [Transfer(1, 3, 0, False), Transfer(1, 2, 0, False)],
    [Transfer(0, 1, 0, False), Transfer(2, 1, 0, True)],
    [Transfer(1, 3, 0, False), Transfer(1, 2, 0, False)],
]


def test_what_is_copied_and_added_to_in_one_step_is_new(ranks: RankPool) -> None:
    """It needs a place in the slot, as a copy alone does not: else a portion would run over the slot's end."""
    schedule = Schedule.from_transfers(Collective.ALL_REDUCE, "copied and added to", 4, 1, COPIED_AND_ADDED_TO)
    assert portion_bytes(schedule, SMALL_SLOT, on_one_host=True) == SMALL_SLOT // 2
    length = SMALL_SLOT // 4
    buffers = [data(rank, length, torch.float32) for rank in range(4)]
    replay(schedule, buffers)
    results = ranks.run(executed, ONE_HOST, (4, 1), COPIED_AND_ADDED_TO, length)
    for rank, buffer in enumerate(buffers):
        assert torch.equal(results[rank][0], buffer), f"rank {rank}"
