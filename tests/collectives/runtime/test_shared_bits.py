"""Over shared memory, and over some of it, results are to the bit those of Gloo and of the replay."""

import hashlib
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import collectives
from collectives import Executor, execute
from collectives.runtime.instructions import portion_bytes
from ringsim import Collective, Schedule, Transfer
from ringsim.registry import build
from ringsim.registry.algorithms import ALGORITHMS
from ringsim.schedule import replay
from tests.collectives.case import COLLECTIVE_OF, REDUCING, Case, expected, ours
from tests.collectives.runtime.test_executor import Rows, assert_conforms, data
from tests.collectives.shared_groups import ONE_HOST, PAIRS, SMALL_SLOT, kept_group, local_ranks, shared_by
from tests.ranks import RankPool
from tests.ringsim.strategies import schedules

LENGTHS = (0, 1, 13, 1031)  # the last one takes several portions in a small slot
# dtype, operation, accumulate, wire
KINDS = [
    (torch.float32, "SUM", None, None),
    (torch.float64, "PRODUCT", None, None),
    (torch.bfloat16, "SUM", torch.float32, None),
    (torch.float16, "AVG", None, None),
    (torch.int32, "MIN", None, None),
    (torch.bool, "BOR", None, None),
    (torch.complex64, "SUM", None, None),
    (torch.float32, "SUM", None, torch.bfloat16),
    (torch.float64, "MAX", torch.float32, torch.float16),
]
ON_HOSTS = pytest.mark.parametrize("hosts", [ONE_HOST, PAIRS], ids=["one host", "several hosts"])


def case_of(name: str, algorithm: str, kind: tuple, length: int, root: int, seed: int) -> Case:
    """A call of that kind, as far as the collective has any."""
    dtype, op, accumulate, wire = kind
    if COLLECTIVE_OF[name] not in REDUCING:
        op, accumulate, wire = "SUM", None, None
    root = root if name in {"broadcast", "reduce"} else 0
    return Case(name, algorithm, op, dtype, length, "plain", root, accumulate, wire, seed % 2 == 0, seed)


def every_algorithm(num_ranks: int, all_of_them: bool) -> list[Case]:
    """All lengths of each with calls of every kind, or two lengths with one kind after the other."""
    found: list[Case] = []
    for name, algorithm in ((n, a) for n, c in COLLECTIVE_OF.items() for of, a in ALGORITHMS if of is c):
        for length in LENGTHS if all_of_them else (LENGTHS[len(found) // 2 % 3], LENGTHS[-1]):
            kinds = KINDS if all_of_them else [KINDS[len(found) % len(KINDS)]]
            found += [
                case_of(name, algorithm, kind, length, (len(found) + 1) % num_ranks, len(found)) for kind in kinds
            ]
    return found


Answer = tuple[list[bytes], list[Case]]
Ranks = tuple[int, tuple[int, ...], int]  # how many, on which hosts, with slots of how many bytes


def compared(_: dist.ProcessGroup, where: Ranks, cases: list[Case]) -> Answer:
    """What each case gives this rank over shared memory, and those that give something else over Gloo."""
    num_ranks, hosts, slot_bytes = where
    shared, by_gloo = kept_group(num_ranks, "auto", hosts, slot_bytes), kept_group(num_ranks, "gloo")
    if shared is None or by_gloo is None:
        return [], []
    assert shared_by(by_gloo).local is None
    assert (shared_by(shared).local is None) == (hosts[:num_ranks].count(hosts[shared.rank()]) == 1)
    results = [ours(case, shared) for case in cases]
    different = [case for case, result in zip(cases, results, strict=True) if ours(case, by_gloo) != result]
    return [hashlib.sha256(result).digest() for result in results], different


def check(ranks: RankPool, where: Ranks, cases: list[Case]) -> None:
    """All ranks agree with Gloo and with the replay."""
    num_ranks = where[0]
    answers = ranks.run(compared, where, cases, timeout_s=280)[:num_ranks]
    assert [different for _, different in answers] == [[]] * num_ranks
    for case, *digests in zip(cases, *(digests for digests, _ in answers), strict=True):
        assert digests == [hashlib.sha256(result).digest() for result in expected(case, num_ranks)], case


@pytest.mark.parametrize(("num_ranks", "hosts"), [(2, ONE_HOST), (3, PAIRS), (4, ONE_HOST), (5, PAIRS)])
def test_every_algorithm(ranks: RankPool, num_ranks: int, hosts: tuple[int, ...]) -> None:
    """Nothing, one element, few, and several portions; other roots than 0; sums in other dtypes, and rounded."""
    check(ranks, (num_ranks, hosts, SMALL_SLOT), every_algorithm(num_ranks, all_of_them=False))


@pytest.mark.slow
@ON_HOSTS
@pytest.mark.parametrize("slot_bytes", [SMALL_SLOT, 2**21])
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5])
def test_every_algorithm_with_every_kind(
    ranks: RankPool, num_ranks: int, slot_bytes: int, hosts: tuple[int, ...]
) -> None:
    """The same, with each dtype and operation."""
    check(ranks, (num_ranks, hosts, slot_bytes), every_algorithm(num_ranks, all_of_them=True))


def executed(_: dist.ProcessGroup, hosts: Sequence[int], shape: tuple[int, int], rows: Rows, length: int) -> tuple:
    """The rank's tensor after a listed schedule, and what it logged: (step, peer, chunk) applied, and sent."""
    group = kept_group(shape[0], "auto", hosts, SMALL_SLOT)
    if group is None:
        return ()
    tensor = data(group.rank(), length, torch.float32)
    log: list = []
    schedule = Schedule.from_transfers(Collective.ALL_REDUCE, "random", *shape, rows)
    execute(schedule, tensor, group=group, log=log)
    applied = [event[1:4] for event in log if event.kind == "applied"]
    return tensor, applied, [event[1:4] for event in log if event.kind == "sent"]


@ON_HOSTS
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedules(max_ranks=4, max_chunks=3, max_steps=6, channels_of_a_pair=2))
def test_random_schedules_conform(ranks: RankPool, hosts: tuple[int, ...], schedule: Schedule) -> None:
    """Whatever the transfers: exchanges, several chunks to one rank in a step, overwritten and sent on."""
    rows, shape = [list(step) for step in schedule.steps], (schedule.num_ranks, schedule.num_chunks)
    results = ranks.run(executed, hosts, shape, rows, 7)
    assert_conforms(schedule, results[: schedule.num_ranks], 7)


@ON_HOSTS
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def in_modes(group: dist.ProcessGroup) -> list[float]:
    """Sums of a group that begins in inference mode, in that mode and outside of it, in two dtypes."""
    shared = kept_group(group.size(), "auto", ONE_HOST, 2 * SMALL_SLOT)
    assert shared is not None
    local_ranks(shared)
    tensors = [torch.ones(9, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    schedule = build(Collective.ALL_REDUCE, "recursive_doubling", group.size())
    with torch.inference_mode():
        for tensor in tensors:
            Executor(schedule, shared).run(tensor.clone())
    for tensor in tensors:
        Executor(schedule, shared).run(tensor)
    return [tensor.sum().item() for tensor in tensors]


def test_a_segment_that_is_first_used_in_inference_mode(ranks: RankPool) -> None:
    """Can be written to in any mode afterwards."""
    assert ranks.run(in_modes) == [[45.0, 45.0]] * 5


def in_dtypes(group: dist.ProcessGroup) -> list[bool]:
    """Broadcasts of every dtype that torch can copy."""
    right = []
    for dtype in (torch.uint16, torch.uint64, torch.float8_e5m2, torch.float8_e4m3fn, torch.complex128, torch.int8):
        expected_tensor = torch.arange(16, dtype=torch.float32).to(dtype)
        tensor = expected_tensor.clone() if group.rank() == 0 else torch.zeros(16).to(dtype)
        collectives.broadcast(tensor, 0, group=kept_group(group.size(), "auto", ONE_HOST, SMALL_SLOT))
        right.append(torch.equal(tensor.view(torch.uint8), expected_tensor.view(torch.uint8)))
    return right


def test_rare_dtypes(ranks: RankPool) -> None:
    """Are sent as they are."""
    assert ranks.run(in_dtypes) == [[True] * 6] * 5
