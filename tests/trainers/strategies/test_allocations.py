"""After the first steps the synchronisation of gradients takes no new memory."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from trainers.data_parallel import DataParallel

LARGEST = 4096  # bytes; a gradient of the model below has 262,144
NAMES = ["allreduce", "flat", "ring", "bucketed/0.3", "bucketed_bf16/0.3", "zero1"]


def allocated(group: dist.ProcessGroup, name: str) -> int:
    """The largest piece of memory, in bytes, that torch takes in a synchronisation after three steps."""
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    parallel = DataParallel(model, name, group, broadcast=True)
    for _ in range(3):
        parallel(torch.ones(2, 256)).sum().backward()
    with torch.profiler.profile(profile_memory=True) as profile:
        parallel.sync_gradients()
    return max((event.self_cpu_memory_usage for event in profile.events() or []), default=0)


@pytest.mark.parametrize("name", NAMES)
def test_no_allocation(ranks: RankPool, name: str) -> None:
    """Buffers are made once; what is left is Python's small change."""
    assert max(ranks.run(allocated, name, num_ranks=2)) < LARGEST


def fresh(group: dist.ProcessGroup) -> int:
    """As `allocated`, of a synchronisation that makes a copy of all gradients."""
    del group
    gradients = [torch.ones(256, 256) for _ in range(4)]
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.cat([gradient.view(-1) for gradient in gradients])
    return max((event.self_cpu_memory_usage for event in profile.events() or []), default=0)


def test_an_allocation_would_be_seen(ranks: RankPool) -> None:
    """The measurement itself."""
    assert ranks.run(fresh, num_ranks=1) == [4 * 256 * 256 * 4]
