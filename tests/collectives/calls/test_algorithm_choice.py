"""`algorithm="auto"`: chosen by simulation, once, and the same on all ranks."""

import pytest
import torch
import torch.distributed as dist

import collectives
from collectives.calls.algorithm_choice import CANDIDATES, Chooser, chooser_of, use_network
from collectives.runtime import CollectiveQueue, state_of
from ringsim import Collective, Network, predict_time
from ringsim.registry import build
from ringsim.registry.algorithms import ALGORITHMS
from tests.ranks import RankPool, group_on

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


def on_the_backend(group: dist.ProcessGroup, options: bool) -> tuple[list[float], str]:
    """A sum by "auto" on the backend "ring", whose barrier is ours, too, and what was chosen."""
    on = group_on("ring", group.size())
    if options:
        chosen = collectives.BackendOptions(all_reduce="auto")
        on = dist.new_group(list(range(group.size())), backend="ring", pg_options=chosen)
    tensor, later = torch.ones(3), torch.ones(3)
    if options:
        dist.all_reduce(tensor, group=on)
        dist.all_reduce(later, group=on, async_op=True).wait()
    else:
        collectives.all_reduce(tensor, group=on, algorithm="auto")
        collectives.all_reduce(later, group=on, algorithm="auto", async_op=True).wait()
    dist.barrier(on)
    return [*tensor.tolist(), *later.tolist()], chooser_of(on).choose(Collective.ALL_REDUCE, 12, on)


@pytest.mark.parametrize("options", [False, True])
def test_auto_on_the_backend(ring_ranks: RankPool, options: bool) -> None:
    """The probes meet without the group's own barrier, which would wait for the call that probes."""
    (sums, name), *others = ring_ranks.run(on_the_backend, options, timeout_s=60)  # all: they make a group together
    assert sums == [4.0] * 6
    assert others == [(sums, name)] * 3


def nested(group: dist.ProcessGroup) -> str:
    """What is said of a collective that is called from within another one of the same group."""
    queue = state_of(group_on("ring", group.size())).part(CollectiveQueue)
    with pytest.raises(RuntimeError, match="from within") as error:
        queue.run(lambda: queue.run(lambda: None))
    queue._broken = None  # of this test's own making
    return str(error.value)


def test_a_collective_within_another_is_an_error(ring_ranks: RankPool) -> None:
    """Rather than a wait without end."""
    assert (
        ring_ranks.run(nested, num_ranks=2) == ["a collective was called from within another one of the same group"] * 2
    )
