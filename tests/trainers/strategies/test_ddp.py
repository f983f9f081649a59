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
from tests.trainers.models import MODELS, SGD, inputs, parameters_of, small_model, take_step
from trainers import DataParallel
from trainers.strategies.ddp import Ddp, group_on_ring
from trainers.strategies.flat_vector import described


def destroy(ring: dist.ProcessGroup, group: dist.ProcessGroup) -> None:
    """Destroy a group when all ranks are there: one that leaves early would end the others' connecting."""
    dist.barrier(group)
    dist.destroy_process_group(ring)
    dist.barrier(group)


def make_groups(group: dist.ProcessGroup) -> None:
    """Make and destroy groups one after the other, which give the right sums and leave no threads.

    Each rank has made another number of groups, so that torch would give a new one several names; under the names of
    destroyed groups torch's store has addresses that nobody listens at.
    """
    for _ in range(group.size() - group.rank()):
        dist.new_group([group.rank()], use_local_synchronization=True)
    threads = []
    for _ in range(5):
        ring = group_on_ring(group)
        assert dist.get_backend(ring) == "ring"
        number = torch.tensor([group.rank() + 1.0])
        dist.all_reduce(number, group=ring)
        assert number.item() == 6.0
        destroy(ring, group)
        del ring
        gc.collect()
        threads.append(len(list(Path("/proc/self/task").glob("*"))))
    assert threads[-1] == threads[0]


def test_groups_on_ring_find_one_another_and_leave_nothing(ranks: RankPool) -> None:
    """Whatever groups ranks have made and destroyed; no threads of theirs remain."""
    ranks.run(make_groups, num_ranks=3)


def train_again(group: dist.ProcessGroup) -> None:
    """Train a model with fsdp_backend_ring, and once more when the group of the first time is destroyed."""
    results = []
    for _ in range(2):
        parallel = DataParallel(small_model(), "fsdp_backend_ring", group)
        take_step(parallel, parallel.optimizer(SGD), group.rank())
        results.append([value.clone() for value in parallel.state_dict().values()])
        destroy(parallel.strategy.group, group)
    torch.testing.assert_close(*results)


def test_fsdp_looks_for_no_destroyed_group(ranks: RankPool) -> None:
    """Though torch takes two meshes of the same ranks for one."""
    ranks.run(train_again, num_ranks=2)


def step_without_reduction(group: dist.ProcessGroup, strategy: str) -> None:
    """Try a step whose gradients DDP could not reduce; it leaves the parameters as they are."""
    model = DataParallel(MODELS["branching"](), strategy, group)
    optimizer = model.optimizer(SGD)
    model(inputs(group.rank())).sum().backward()
    before = parameters_of(model)
    assert said_by(RuntimeError, optimizer.step).startswith("Expected to have finished reduction in the prior iterat")
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("strategy", ["ddp", "ddp_hook", "ddp_backend_ring"])
def test_no_step_uses_gradients_that_are_not_reduced(ranks: RankPool, strategy: str) -> None:
    """DDP by itself says in the next forward pass that a parameter has not taken part, if there is one."""
    ranks.run(step_without_reduction, strategy, num_ranks=2)


def compare_buckets(group: dist.ProcessGroup) -> None:
    """Compare the sizes of the buckets that DDP has rebuilt after the first step with those that `bucketed` fills."""
    model = nn.Sequential(*(nn.Linear(300, 300, bias=False) for _ in range(9)))  # 0.36 MB each
    strategy = Ddp(model, group)
    for _ in range(3):
        strategy.module(torch.ones(1, 300)).sum().backward()
    theirs = strategy.module._get_ddp_logging_data()["rebuilt_bucket_sizes"]  # type: ignore[operator]
    buckets = fill_buckets(range(8, -1, -1), described(strategy.parameters), BucketCaps.from_mb(None))
    assert [int(size) for size in str(theirs).split(",")] == [len(bucket) * 300 * 300 * 4 for bucket in buckets]
    assert len(buckets) == 2


def test_buckets_are_those_of_ddp(ranks: RankPool) -> None:
    """Torch itself reports them: 3 layers and then 6."""
    ranks.run(compare_buckets, num_ranks=2)
