"""Groups of ranks whose tensors lie in memory that they share."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.collectives.shared_groups import ONE_HOST, PAIRS, finish, fresh_group, kept_group, lent, local_ranks
from tests.collectives.shared_memory.test_memory import in_use
from tests.ranks import RankPool
from tests.refusals import said_by


def total(group: dist.ProcessGroup) -> float:
    """What the ranks' numbers, from 1 on, come to."""
    return group.size() * (group.size() + 1) / 2


def sums(tensor: torch.Tensor, group: dist.ProcessGroup, **options: Any) -> bool:
    """Whether an all_reduce is right of a tensor that holds the rank's number, from 1 on."""
    finish(collectives.all_reduce(tensor.fill_(group.rank() + 1), group=group, **options))
    return bool((tensor == total(group)).all())


def many(_: dist.ProcessGroup, hosts: tuple[int, ...], turns: int) -> tuple[bool, int]:
    """Return whether all sums are right, and how much more memory is in use after many tensors."""
    group = kept_group(4, "auto", hosts)
    if group is None:
        return True, 0
    is_right, kept = True, [lent(group, 0.0), lent(group, 0.0, 100_000)]
    heap = local_ranks(group).heap
    before = in_use(heap)
    for turn in range(turns):
        tensor = lent(group, 0.0, (8, 1000, 100_000)[turn % 3])
        is_right &= sums(tensor, group, algorithm=("ring", "direct")[turn % 2], async_op=turn % 3 == 0)
        is_right &= sums(kept[turn % 2][turn % 7 :], group)
        del tensor
    collectives.barrier(group=group)
    return is_right, in_use(heap) - before


@pytest.mark.parametrize("hosts", [ONE_HOST, PAIRS], ids=["one host", "several hosts"])
def test_many_tensors_leave_nothing(ranks: RankPool, hosts: tuple[int, ...]) -> None:
    """Some hundred, next to some that stay."""
    assert ranks.run(many, hosts, 90) == [(True, 0)] * 5


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
    return wrong


WHERE = {"shm": ("auto", ONE_HOST), "gloo": ("gloo",), "hosts": ("auto", PAIRS), "another": ("auto", ONE_HOST, 4096)}


def test_a_tensor_is_used_anywhere(ranks: RankPool) -> None:
    """In other groups, over Gloo, by torch; by some ranks alone."""
    assert ranks.run(used_anywhere, num_ranks=5)[:3] == [[]] * 3


def dropped_while_under_way(_: dist.ProcessGroup) -> bool:
    """Whether collectives are right whose tensors only they still have."""
    group = kept_group(3, "auto", ONE_HOST)
    if group is None:
        return True
    shares = [torch.empty(500) for _ in range(20)]
    works = [
        collectives.reduce_scatter_tensor(share, lent(group, turn, 3 * 500), group=group, async_op=True)
        for turn, share in enumerate(shares)
    ]
    finish(*works)
    return all(bool((share == 3 * turn).all()) for turn, share in enumerate(shares))


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
        mine = lent(group, 0.0) if group.rank() == turn else None
        work = collectives.all_reduce(tensor, group=group, async_op=True)
        mine = lent(group, 0.0) if mine is None else mine
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
    """Whether a sum of a tensor of a group of one rank is right."""
    return sums(lent(group, 0.0), group)


def sizes(group: dist.ProcessGroup) -> list[str]:
    """Return what becomes of sizes as torch takes them, and of those that it does not."""
    told = [str(tuple(collectives.empty(size, group=group).shape)) for size in ((2, 3), ())]
    told += [said_by(RuntimeError, collectives.empty, size, group=group) for size in (-1, 2**62, 2**42)]
    return [*told, str(sums(lent(group, 1.0), group))]


def test_sizes(ranks: RankPool) -> None:
    """Nobody's process is ended for want of memory, and the next tensor is there; one rank shares with nobody."""
    for pair, nothing, negative, huge, large, after in ranks.run(sizes, num_ranks=2):
        assert (pair, nothing, after) == ("(2, 3)", "()", "True")
        assert "negative dimension" in negative
        assert "overflowed" in huge
        assert large.startswith(f"a tensor of {2**44} bytes that ranks share: ")
    assert ranks.run(alone, num_ranks=1) == [True]
