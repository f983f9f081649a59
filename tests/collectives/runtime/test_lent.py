"""Groups of ranks whose tensors lie in memory that they share: what they do with them, and what becomes of faults."""

import os
import random
import signal
import threading
import time
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives import CollectiveError, Executor
from collectives.runtime import Sharing, state_of
from collectives.runtime.schedule_run import ScheduleRun
from ringsim import Collective, Schedule, Transfer
from ringsim.registry import build
from tests.collectives.runtime.test_faults import SOON_S
from tests.collectives.runtime.test_shared_faults import TIMEOUT_S, answers_of, shared_world
from tests.collectives.shared_groups import (
    ONE_HOST,
    PAIRS,
    SMALL_SLOT,
    fresh_group,
    kept_group,
    on_hosts,
    sharing_group,
    slots_of,
)
from tests.collectives.shared_memory.test_heap import in_use
from tests.fuzz.deaths import draw_case
from tests.ranks import RankPool, Ranks
from tests.refusals import said_by


def lent(group: dist.ProcessGroup, value: float, length: int = 1000) -> torch.Tensor:
    """(length,): a tensor in memory that ranks share."""
    return collectives.empty(length, group=group).fill_(value)


def total(group: dist.ProcessGroup) -> float:
    """What the ranks' numbers, from 1 on, come to."""
    return group.size() * (group.size() + 1) / 2


def sums(tensor: torch.Tensor, group: dist.ProcessGroup, **options: Any) -> bool:
    """Whether an all_reduce is right of a tensor that holds the rank's number, from 1 on."""
    work = collectives.all_reduce(tensor.fill_(group.rank() + 1), group=group, **options)
    if work is not None:
        work.wait()
    return bool((tensor == total(group)).all())


def many(_: dist.ProcessGroup, hosts: tuple[int, ...], turns: int) -> tuple[bool, int, int]:
    """Return whether all sums are right, and the memory in use with few tensors before, and after many."""
    group = kept_group(4, "auto", hosts)
    if group is None:
        return True, 0, 0
    is_right, kept = True, [lent(group, 0.0), lent(group, 0.0, 100_000)]
    local = state_of(group).part(Sharing).of(group).local
    before = in_use(local.heap) if local else 0
    for turn in range(turns):
        tensor = lent(group, 0.0, (8, 1000, 100_000)[turn % 3])
        is_right &= sums(tensor, group, algorithm=("ring", "direct")[turn % 2], async_op=turn % 3 == 0)
        is_right &= sums(kept[turn % 2][turn % 7 :], group)
        del tensor
    collectives.barrier(group=group)
    return is_right, before, in_use(local.heap) if local else 0


@pytest.mark.parametrize("hosts", [ONE_HOST, PAIRS], ids=["one host", "several hosts"])
def test_many_tensors_leave_nothing(ranks: RankPool, hosts: tuple[int, ...]) -> None:
    """Some hundred, next to some that stay."""
    for is_right, before, after in ranks.run(many, hosts, 90):
        assert is_right
        assert before == after


def used_anywhere(_: dist.ProcessGroup) -> list[str]:
    """Return what goes wrong with a tensor of one group in others, and with tensors that only some ranks have there."""
    groups = {name: kept_group(3, *rest) for name, rest in WHERE.items()}
    wrong = []
    for name, group in groups.items():
        if group is None:
            return []
        tensor = lent(group, 0.0)
        wrong += [f"{name} in {other}" for other, another in groups.items() if another and not sums(tensor, another)]
        some = tensor if group.rank() == 1 else torch.empty(1000)
        for algorithm in ("ring", "halving_doubling", "two_shot", "direct"):
            if not sums(some[5:], group, algorithm=algorithm):
                wrong.append(f"{name}: only on rank 1, {algorithm}")
        dist.all_reduce(tensor.fill_(1), group=group)
        if (tensor != 3).any():
            wrong.append(f"{name}: torch.distributed")
        if (lent(group, 0.0, 0).numel(), lent(group, 7.0, 1).item()) != (0, 7.0):
            wrong.append(f"{name}: nothing, and one element")
        collectives.all_reduce(lent(group, 0.0, 0), group=group)
        wrong += [f"{name}: {problem}" for problem in in_and_out(group)]
    return wrong


WHERE = {
    "shm": ("auto", ONE_HOST),
    "gloo": ("gloo",),
    "several hosts": ("auto", PAIRS),
    "another": ("auto", ONE_HOST, 4096),
}


def in_and_out(group: dist.ProcessGroup) -> list[str]:
    """Return what is wrong with shares as inputs and outputs, apart and in place; inputs stay as they are."""
    rank, size, wrong = group.rank(), group.size(), []
    for apart in (True, False):
        whole = lent(group, 0.0, 30 * size).copy_(torch.arange(30.0 * size) + rank)
        own = whole[30 * rank : 30 * rank + 30]
        share = lent(group, 0.0, 30) if apart else own
        before, expected = whole.clone(), (torch.arange(30.0 * size) * size + total(group) - size)[30 * rank :][:30]
        collectives.reduce_scatter_tensor(share, whole, group=group)
        if not torch.equal(share, expected) or (apart and not torch.equal(whole, before)):
            wrong.append(f"reduce_scatter, apart {apart}")
        share.fill_(rank + 1)
        whole_again = lent(group, 0.0, 30 * size) if apart else whole
        collectives.all_gather_into_tensor(whole_again, share, group=group)
        if not torch.equal(whole_again, torch.arange(1.0, size + 1).repeat_interleave(30)):
            wrong.append(f"all_gather, apart {apart}")
    return wrong


def test_a_tensor_is_used_anywhere(ranks: RankPool) -> None:
    """In other groups, over Gloo, by torch; by some ranks alone; for inputs and outputs."""
    assert ranks.run(used_anywhere, num_ranks=5)[:3] == [[]] * 3


def dropped_while_under_way(_: dist.ProcessGroup) -> bool:
    """Whether collectives are right whose tensors only they still have."""
    group = kept_group(3, "auto", ONE_HOST)
    if group is None:
        return True
    results, works = [], []
    for turn in range(20):
        whole, share = lent(group, turn, 3 * 500), torch.empty(500)
        works.append(collectives.reduce_scatter_tensor(share, whole, group=group, async_op=True))
        results.append(share)
        del whole
    for work in works:
        assert work is not None
        work.wait()
    return all(bool((share == 3 * turn).all()) for turn, share in enumerate(results))


def test_a_tensor_is_dropped_while_it_is_used(ranks: RankPool) -> None:
    """It ends with the collective."""
    assert ranks.run(dropped_while_under_way) == [True] * 5


def first_call(_: dist.ProcessGroup) -> list[bool]:
    """Return whether sums are right in groups that begin with `empty`, on some ranks behind other calls."""
    right = []
    for turn in range(3):
        group = fresh_group(3)
        if group is None:
            continue
        tensor = torch.empty(10).fill_(group.rank() + 1)
        if group.rank() == turn:
            mine = lent(group, 0.0)
            work = collectives.all_reduce(tensor, group=group, async_op=True)
        else:
            work = collectives.all_reduce(tensor, group=group, async_op=True)
            mine = lent(group, 0.0)
        assert work is not None
        work.wait()
        right += [tensor[0].item() == total(group), sums(mine, group)]
        with torch.inference_mode():
            right.append(sums(lent(group, 0.0), group))
        dist.destroy_process_group(group)
        mine.fill_(5.0)
        right.append(mine.sum().item() == 5000)
    return right


def test_empty_may_be_the_first_call(ranks: RankPool) -> None:
    """Next to one that is under way, on other ranks before it; in inference mode; and tensors outlive the group."""
    assert ranks.run(first_call)[:3] == [[True] * 12] * 3


def alone(group: dist.ProcessGroup) -> bool:
    """Whether a group of one rank can do the same."""
    return sums(lent(group, 0.0), group) and lent(group, 1.0, 3).sum().item() == 3


def test_one_rank(ranks: RankPool) -> None:
    """Shares its memory with nobody."""
    assert ranks.run(alone, num_ranks=1) == [True]


def sizes(group: dist.ProcessGroup) -> list[str]:
    """Return what becomes of sizes as torch takes them, and of those that it does not."""
    told = [str(tuple(collectives.empty(size, group=group).shape)) for size in ((2, 3), ())]
    told += [said_by(RuntimeError, collectives.empty, size, group=group) for size in (-1, 2**62, 2**42)]
    return [*told, str(lent(group, 1.0).sum().item())]


def test_sizes(ranks: RankPool) -> None:
    """Nobody's process is ended for want of memory, and the next tensor is there."""
    for pair, nothing, negative, huge, large, after in ranks.run(sizes, num_ranks=2):
        assert (pair, nothing, after) == ("(2, 3)", "()", "1000.0")
        assert "negative dimension" in negative
        assert "overflowed" in huge
        assert large.startswith(f"a tensor of {2**44} bytes that ranks share: ")


def test_kills() -> None:
    """A rank is killed at random moments: the others finish with right results, or name it in time."""
    draw, cases = random.Random(1), 0
    while cases < 2:
        case = draw_case(draw)
        if case.how == "kill" and case.is_lent:
            case.run()
            cases += 1


CHAIN = [[Transfer(0, 1, 0, True)], [Transfer(1, 2, 0, True)]]


def slow_add(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """Read what has arrived long after its sender has failed."""
    time.sleep(0.6)
    chunk.add_(arrived)


def overwritten(lenders: tuple[int, ...], hosts: tuple[int, ...], how: str) -> str:
    """Return what becomes of rank 0's tensor, which is changed after a failure while rank 1 has yet to read it."""
    group = shared_world() if hosts == (0, 0, 0) else dist.group.WORLD
    assert group is not None
    executor = Executor(Schedule.from_transfers(Collective.ALL_REDUCE, "chain", 3, 1, CHAIN), group)
    with on_hosts(group.rank(), hosts):
        executor.run(torch.ones(5))
    tensor = (lent(group, 1.0) if group.rank() in lenders else torch.empty(1000)).fill_(1.0)
    if group.rank() == 0 and how == "interrupt":
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        executor.run(tensor, reduce=slow_add if group.rank() == 1 else torch.Tensor.add_)
    except (KeyboardInterrupt, CollectiveError) as error:
        tensor.fill_(99.0)
        if group.rank() == 0:
            time.sleep(1)  # not to end, which the others would hear of
        return f"{type(error).__name__}: {error}"
    return f"nothing was raised: {tensor[0].item()}"


@pytest.mark.parametrize(
    ("lenders", "hosts"),
    [((0, 1, 2), (0, 0, 0)), ((0,), (0, 0, 0)), ((0, 1, 2), (0, 0, 1))],
    ids=["all lend", "one lends", "several hosts"],
)
def test_an_interrupted_rank_changes_its_tensor(lenders: tuple[int, ...], hosts: tuple[int, ...]) -> None:
    """Nobody returns a sum that was made of it, also not a rank that got it from one that read there."""
    with Ranks(3, timeout_s=3.0) as ranks:
        ranks.start(overwritten, lenders, hosts, "interrupt")
        reports = answers_of(ranks, [0, 1, 2])
    assert reports[0].startswith("KeyboardInterrupt")
    assert "rank 0 has failed, and may have overwritten its tensor while this rank read it" in reports[1]
    assert reports[2].startswith("CollectiveError: rank 2: ")


def stalled_reader(victim: int) -> str:
    """Return a rank's error when one stops before it has read what others lend."""
    group = shared_world()
    tensor = lent(group, 1.0)
    collectives.all_reduce(tensor, group=group)
    if group.rank() == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        collectives.broadcast(tensor, 0, group=group)
    except CollectiveError as error:
        return str(error)
    return "nothing was raised"


def test_a_reader_that_stalls() -> None:
    """Who lends to it gives up after the group's timeout, and names it."""
    with Ranks(3, timeout_s=3.0) as ranks:
        ranks.start(stalled_reader, 2)
        reports = answers_of(ranks, [0, 1])
        ranks.signal(2, signal.SIGCONT)
    for report in reports.values():
        assert report.endswith("; the first rank to stop responding was rank 2")


def failing_after_a_while(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """A user's `reduce`, with a fault in the middle."""
    chunk[: len(chunk) // 2].add_(arrived[: len(chunk) // 2])
    raise ZeroDivisionError


def failing_reduce(victim: int, algorithm: str) -> str:
    """Return a rank's error where the victim's `reduce` raises, and the rank changes its tensor at once."""
    group = shared_world()
    executor = Executor(build(Collective.ALL_REDUCE, algorithm, group.size()), group)
    executor.run(torch.ones(12))
    tensor = lent(group, 1.0)
    try:
        executor.run(tensor, reduce=failing_after_a_while if group.rank() == victim else torch.Tensor.add_)
    except (CollectiveError, ZeroDivisionError) as error:
        tensor.fill_(99.0)
        return type(error).__name__
    return f"nothing was raised: {tensor.unique().tolist()}"


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "two_shot", "recursive_doubling", "direct"])
def test_a_reduce_that_raises(algorithm: str) -> None:
    """No rank returns a sum that was made of what it left, whatever it was doing."""
    with Ranks(4, TIMEOUT_S) as ranks:
        ranks.start(failing_reduce, 1, algorithm)
        reports = answers_of(ranks, [0, 1, 2, 3])
    assert reports.pop(1) == "ZeroDivisionError"
    assert set(reports.values()) <= {"CollectiveError", "nothing was raised: [4.0]"}


def from_threads(group: dist.ProcessGroup, allocations: int) -> bool:
    """Whether sums are right while another thread allocates and drops tensors."""
    shared = sharing_group(group.size())
    assert shared is not None

    def allocate() -> None:
        for turn in range(allocations):
            lent(shared, turn, 1 + turn % 5000)

    thread = threading.Thread(target=allocate)
    thread.start()
    is_right = all(sums(lent(shared, 0.0, 1 + turn), shared) for turn in range(100))
    thread.join()
    dist.destroy_process_group(shared)
    return is_right


def test_tensors_of_several_threads(ranks: RankPool) -> None:
    """They come and go at any moment."""
    assert ranks.run(from_threads, 200) == [True] * 5


def interrupted_in_between(in_slots_of: int) -> tuple[str, float]:
    """Return a rank's error where rank 1 is interrupted when it has ended the first of many portions; and the time."""
    run, num_run = ScheduleRun.run, []

    def run_and_interrupt(portion: ScheduleRun) -> None:
        run(portion)
        num_run.append(1)
        if group.rank() == 1:
            raise KeyboardInterrupt

    group = shared_world()
    with slots_of(in_slots_of):
        collectives.all_reduce(torch.ones(1), group=group)
    began_s = time.monotonic()
    with mock.patch.object(ScheduleRun, "run", run_and_interrupt):
        try:
            collectives.all_reduce(torch.ones(100_000), group=group)
        except (KeyboardInterrupt, CollectiveError) as error:
            told = f"{type(error).__name__}: {error}"
            took_s = time.monotonic() - began_s
            store = dist.distributed_c10d._get_default_store()
            store.set(f"told {group.rank()}", "")
            if group.rank() == 1:  # not to end before the others are told, which they would hear of
                store.wait(["told 0", "told 2"], timedelta(seconds=SOON_S))
            return told, took_s
    return f"nothing was raised after {len(num_run)} portions", 0.0


def test_an_interrupt_between_two_portions() -> None:
    """The others are told at once, as by one within a portion."""
    with Ranks(3, TIMEOUT_S) as ranks:
        ranks.start(interrupted_in_between, SMALL_SLOT)
        reports = answers_of(ranks, [0, 1, 2])
    assert reports[1][0].startswith("KeyboardInterrupt")
    for rank in (0, 2):
        assert reports[rank][0].startswith(f"CollectiveError: rank {rank}: all_reduce")
        assert reports[rank][1] < SOON_S
