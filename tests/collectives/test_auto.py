"""`algorithm="auto"`: chosen by simulation, once, and the same on all ranks."""

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.auto import CANDIDATES, Chooser, chooser_of, use_network
from ringsim import Collective, Network, build, predict_time
from ringsim.algorithms import ALGORITHMS
from tests.ranks import RankPool

SLOW = Network(latency_s=1e-3, bandwidth_bytes_per_s=1e8)


def test_candidates_exist() -> None:
    """Each is an algorithm of its collective."""
    for collective, names in CANDIDATES.items():
        for name in names:
            assert (collective, name.partition("/")[0]) in ALGORITHMS


def chosen(group: dist.ProcessGroup, sizes: list[int]) -> list[str]:
    """What is chosen for sums of these sizes, on a network that is given."""
    use_network(SLOW, group)
    for size in sizes:
        tensor = torch.full((size // 4,), float(group.rank()))
        collectives.all_reduce(tensor, group=group, algorithm="auto")
        assert (tensor == sum(range(group.size()))).all()
    return [chooser_of(group).choose(Collective.ALL_REDUCE, size, group) for size in sizes]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_the_simulator_chooses(ranks: RankPool, num_ranks: int) -> None:
    """The fastest of the candidates on the network, near the size asked for; every rank the same."""
    sizes = [64, 2**16, 2**22]
    results = ranks.run(chosen, sizes, num_ranks=num_ranks)
    assert all(result == results[0] for result in results)
    for size, name in zip(sizes, results[0], strict=True):
        times = {
            other: predict_time(build(Collective.ALL_REDUCE, other, num_ranks), SLOW, size)
            for other in CANDIDATES[Collective.ALL_REDUCE]
        }
        assert times[name] <= 1.3 * min(times.values())


def probed(group: dist.ProcessGroup) -> tuple[list[str], float]:
    """What is chosen where nothing is known of the network, for every collective, all with right results."""
    n, rank = group.size(), group.rank()
    whole = torch.arange(float(3 * n))
    collectives.all_reduce(total := whole.clone(), group=group, algorithm="auto")
    collectives.reduce_scatter_tensor(share := torch.empty(3), whole, group=group, algorithm="auto")
    collectives.all_gather_into_tensor(gathered := torch.empty(3 * n), share, group=group, algorithm="auto")
    collectives.broadcast(copy := torch.full((2,), float(rank)), group_src=n - 1, group=group, algorithm="auto")
    collectives.reduce(summed := torch.ones(2), group_dst=0, group=group, algorithm="auto")
    right = torch.equal(total, whole * n) and torch.equal(gathered, whole * n) and bool((copy == n - 1).all())
    assert right
    assert rank != 0 or bool((summed == n).all())
    chooser: Chooser = chooser_of(group)
    return [chooser.choose(collective, 64, group) for collective in CANDIDATES], float(right)


def test_a_group_is_probed_at_first_use(ranks: RankPool) -> None:
    """Without a network of its own; and all ranks choose the same for every collective."""
    results = ranks.run(probed, num_ranks=3)
    assert all(result == results[0] for result in results)
