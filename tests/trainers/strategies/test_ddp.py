"""DDP as a strategy, and the group on the backend "ring" that `ddp_backend_ring` and `fsdp_backend_ring` make."""

import gc
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ringsim.training_step import BucketCaps, fill_buckets
from tests.ranks import RankPool
from tests.refusals import said_by
from tests.trainers.models import MODELS, SGD, inputs, small_model
from tests.trainers.strategies.odd_layers import ODD_MODELS
from trainers import DataParallel
from trainers.strategies.ddp import Ddp, group_on_ring
from trainers.strategies.flat_vector import described


def summed(group: dist.ProcessGroup) -> float:
    """Return the sum over the ranks of a new group."""
    number = torch.tensor([group.rank() + 1.0])
    ring = group_on_ring(group)
    assert dist.get_backend(ring) == "ring"
    dist.all_reduce(number, group=ring)
    return number.item()


def after_groups_of_some(group: dist.ProcessGroup) -> list[float]:
    """Each rank has made another number of groups, so that torch would give the new one three names."""
    for _ in range(group.size() - group.rank()):
        dist.new_group([group.rank()], use_local_synchronization=True)
    return [summed(group), summed(group)]


def after_destroyed_groups(group: dist.ProcessGroup) -> list[float]:
    """Under whose names torch's store has addresses that nobody listens at."""
    sums = []
    for _ in range(3):
        ring = group_on_ring(group)
        dist.barrier(group)  # a rank that leaves early would end the others' connecting
        dist.destroy_process_group(ring)
        dist.barrier(group)
        sums.append(summed(group))
    return sums


def threads_left(group: dist.ProcessGroup) -> int:
    """How many threads more there are after some groups have been made and destroyed than after the first of them."""
    numbers = []
    for _ in range(5):
        ring = group_on_ring(group)
        dist.barrier(group)
        dist.destroy_process_group(ring)
        dist.barrier(group)
        del ring
        gc.collect()
        numbers.append(len(list(Path("/proc/self/task").iterdir())))
    return numbers[-1] - numbers[0]


def trained_again(group: dist.ProcessGroup) -> list[list[torch.Tensor]]:
    """Train a model with fsdp_backend_ring, and once more when the group of the first time is destroyed."""
    results = []
    for _ in range(2):
        parallel = DataParallel(small_model(), "fsdp_backend_ring", group)
        optimizer = parallel.optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        parallel(inputs(group.rank())).pow(2).mean().backward()
        optimizer.step()
        results.append([value.clone() for value in parallel.state_dict().values()])
        dist.barrier(group)
        dist.destroy_process_group(parallel.strategy.group)
        dist.barrier(group)
    return results


def test_fsdp_looks_for_no_destroyed_group(ranks: RankPool) -> None:
    """Though torch takes two meshes of the same ranks for one."""
    for first, second in ranks.run(trained_again, num_ranks=2):
        torch.testing.assert_close(first, second)


def test_ranks_with_different_numbers_of_groups_find_one_another(ranks: RankPool) -> None:
    """As those do where others have made groups among themselves."""
    assert ranks.run(after_groups_of_some, num_ranks=3) == [[6.0, 6.0]] * 3


def test_a_destroyed_group_is_not_looked_for(ranks: RankPool) -> None:
    """However often one is made and destroyed."""
    assert ranks.run(after_destroyed_groups, num_ranks=3) == [[6.0] * 3] * 3


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not list a process's threads")
def test_destroyed_groups_leave_no_threads(ranks: RankPool) -> None:
    """Neither their own nor those of groups that were made for a new name."""
    assert ranks.run(threads_left, num_ranks=2) == [0, 0]


def evaluated_alone(group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    """Parameters and buffers of a model with buffers that rank 0 evaluates alone between steps."""
    parallel = DataParallel(ODD_MODELS["spectral norm"](), name, group)
    optimizer = parallel.optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for step in range(3):
        parallel.zero_grad()
        parallel(inputs(group.rank() + 10 * step)).pow(2).mean().backward()
        optimizer.step()
        if group.rank() == 0:
            parallel.eval()
            with torch.no_grad():
                parallel(inputs(step))
            parallel.train()
    return [value.detach().clone() for value in parallel.state_dict().values()]


def test_one_rank_can_evaluate_a_model_with_buffers_alone(ranks: RankPool) -> None:
    """Of which torch's DDP by itself makes ranks that wait for one another."""
    assert list(ODD_MODELS["spectral norm"]().buffers())
    for found, expected in zip(
        ranks.run(evaluated_alone, "ddp", num_ranks=2), ranks.run(evaluated_alone, "ring", num_ranks=2), strict=True
    ):
        torch.testing.assert_close(found, expected)


def step_without_reduction(group: dist.ProcessGroup, strategy: str) -> tuple[str, bool]:
    """Return what a step says whose gradients DDP could not reduce, and whether the parameters are as before."""
    model = DataParallel(MODELS["branching"](), strategy, group)
    optimizer = model.optimizer(SGD)
    model(inputs(group.rank())).sum().backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    return said_by(RuntimeError, optimizer.step), all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("strategy", ["ddp", "ddp_hook", "ddp_backend_ring"])
def test_no_step_uses_gradients_that_are_not_reduced(ranks: RankPool, strategy: str) -> None:
    """DDP by itself says in the next forward pass that a parameter has not taken part, if there is one."""
    for refusal, is_unchanged in ranks.run(step_without_reduction, strategy):
        assert refusal.startswith("Expected to have finished reduction in the prior iteration")
        assert is_unchanged


def ddp_buckets(group: dist.ProcessGroup) -> tuple[list[int], list[int]]:
    """The sizes of the buckets that DDP has rebuilt after the first step, and of those that `bucketed` fills."""
    model = nn.Sequential(*(nn.Linear(300, 300, bias=False) for _ in range(9)))  # 0.36 MB each
    strategy = Ddp(model, group)
    for _ in range(3):
        strategy.module(torch.ones(1, 300)).sum().backward()
    theirs = strategy.module._get_ddp_logging_data()["rebuilt_bucket_sizes"]  # type: ignore[operator]
    buckets = fill_buckets(range(8, -1, -1), described(strategy.parameters), BucketCaps.from_mb(None))
    return [int(size) for size in str(theirs).split(",")], [len(bucket) * 300 * 300 * 4 for bucket in buckets]


def test_buckets_are_those_of_ddp(ranks: RankPool) -> None:
    """Torch itself reports them: 3 layers and then 6."""
    for theirs, ours in ranks.run(ddp_buckets, num_ranks=2):
        assert len(theirs) == 2
        assert ours == theirs
