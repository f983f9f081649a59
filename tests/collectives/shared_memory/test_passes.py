"""The passes over memory that docs/collectives.md counts are those of the tensor operations that a rank executes."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.collectives.runtime.test_shared_plan import Counting
from tests.ranks import RankPool

LENGTH = 48 * 1024  # elements, of the longer tensor of each call
Passes = tuple[float, float]


READS = {"copied": 1, "added in place": 2, "added apart": 2}  # of each operation, which writes once


def _calls(group: dist.ProcessGroup, new: Callable[[int], torch.Tensor]) -> dict[str, Callable[[], object]]:
    whole, other, share = new(LENGTH), new(LENGTH), new(LENGTH // group.size())
    own = whole.view(group.size(), -1)[group.rank()]
    return {
        "all_reduce two_shot": lambda: collectives.all_reduce(whole, group=group, algorithm="two_shot"),
        "all_reduce ring": lambda: collectives.all_reduce(whole, group=group, algorithm="ring"),
        "reduce_scatter direct": lambda: collectives.reduce_scatter_tensor(
            share, whole, group=group, algorithm="direct"
        ),
        "all_gather direct": lambda: collectives.all_gather_into_tensor(whole, share, group=group, algorithm="direct"),
        "all_gather in place": lambda: collectives.all_gather_into_tensor(whole, own, group=group, algorithm="direct"),
        "broadcast binomial_tree": lambda: collectives.broadcast(whole, 0, group=group, algorithm="binomial_tree"),
        "all_to_all direct": lambda: collectives.all_to_all_single(other, whole, group=group, algorithm="direct"),
    }


def counted(group: dist.ProcessGroup, is_shared: bool) -> dict[str, Passes]:
    """Return for each call the elements that this rank reads and writes, over the length."""
    collectives.use_transport("shm", group := dist.new_group(dist.get_process_group_ranks(group)))

    def new(length: int) -> torch.Tensor:
        return (collectives.empty(length, group=group) if is_shared else torch.empty(length)).fill_(1)

    passes, whole_bytes = {}, 4 * LENGTH
    for name, call in _calls(group, new).items():
        call()  # which makes the executor
        with Counting([]) as counting:
            call()
        read = sum(READS[kind] * num_bytes for _, kind, num_bytes in counting.notes)
        passes[name] = read / whole_bytes, sum(num_bytes for *_, num_bytes in counting.notes) / whole_bytes
    return passes


def expected(n: int, is_shared: bool) -> dict[str, Passes]:
    """The table of docs/collectives.md, per rank."""
    if is_shared:
        return {
            "all_reduce two_shot": (3 - 3 / n, 2 - 2 / n),
            "all_reduce ring": (3 - 3 / n, 2 - 2 / n),
            "reduce_scatter direct": (2 - 2 / n, 1 - 1 / n),
            "all_gather direct": (1, 1),
            "all_gather in place": (1 - 1 / n, 1 - 1 / n),
            "broadcast binomial_tree": (1 - 1 / n, 1 - 1 / n),
            "all_to_all direct": (1, 1),
        }
    return {
        "all_reduce two_shot": (4 - 3 / n, 3 - 2 / n),
        "all_reduce ring": (3 - 1 / n, 2),
        "reduce_scatter direct": (3 - 3 / n, 2 - 2 / n),
        "all_gather direct": (1 + 1 / n, 1 + 1 / n),
        "all_gather in place": (1, 1),
        "broadcast binomial_tree": (1, 1),
        "all_to_all direct": (2 - 1 / n, 2 - 1 / n),
    }


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_passes_of_each_collective(ranks: RankPool, num_ranks: int, is_shared: bool) -> None:
    """The mean over the ranks, as the root of a broadcast writes what the others read."""
    found = ranks.run(counted, is_shared, num_ranks=num_ranks)
    for name, passes in expected(num_ranks, is_shared).items():
        means = [sum(of_rank[name][index] for of_rank in found) / num_ranks for index in range(2)]
        assert means == pytest.approx(passes), name
