"""FSDP2 on our schedules, by custom communication or by the backend "ring", trains as on Gloo."""

from collections import Counter
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.collectives.integrations.test_backend import executions
from tests.collectives.integrations.test_ddp_hook import STEPS, batch, batches_of, train
from tests.ranks import RankPool, group_on


def model() -> nn.Sequential:
    """Small, with parameters that three ranks cannot share evenly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 10), nn.Tanh(), nn.Linear(10, 5))


@cache
def mesh_of(backend: str, num_ranks: int) -> DeviceMesh:
    """A mesh with one dimension."""
    return DeviceMesh.from_group(group_on(backend, num_ranks), "cpu")


def sharded(group: dist.ProcessGroup, way: str) -> list[torch.Tensor]:
    """The whole parameters after training, sharded over the group."""
    from torch.distributed.fsdp import fully_shard

    from collectives.integrations.fsdp import FSDPAllGather, FSDPReduceScatter

    mesh = mesh_of("ring" if way == "ring" else "gloo", group.size())
    whole = model()
    for module in (whole[0], whole[2], whole):
        fully_shard(module, mesh=mesh)
        if way.startswith("custom"):
            wire = torch.bfloat16 if way == "custom, bfloat16" else None
            module.set_custom_all_gather(FSDPAllGather())
            module.set_custom_reduce_scatter(FSDPReduceScatter("direct" if wire else "ring", wire=wire))
        if way == "custom, asynchronous":
            module._set_unshard_async_op(True)
    train(whole, batches_of(group.rank()))
    return [parameter.full_tensor().detach() for parameter in whole.parameters()]


def unsharded(num_ranks: int) -> list[torch.Tensor]:
    """The parameters after training in one process, on the batches of all ranks together."""
    whole = model()
    train(whole, [torch.cat([batch(rank, step) for rank in range(num_ranks)]) for step in range(STEPS)])
    return [parameter.detach() for parameter in whole.parameters()]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("way", ["gloo", "ring", "custom", "custom, asynchronous", "custom, bfloat16"])
def test_training(ring_ranks: RankPool, num_ranks: int, way: str) -> None:
    """The parameters are those of one process with all the data, and the same bits on all ranks."""
    results = ring_ranks.run(sharded, way, num_ranks=num_ranks)
    tolerance = {"rtol": 1e-2, "atol": 1e-3} if "bfloat16" in way else {"rtol": 1e-5, "atol": 1e-6}
    for rank, parameters in enumerate(results):
        for mine, first, expected in zip(parameters, results[0], unsharded(num_ranks), strict=True):
            assert torch.equal(mine, first), rank
            torch.testing.assert_close(mine, expected, **tolerance)


def counted(group: dist.ProcessGroup) -> Counter[str]:
    """How many collectives of ours one step of FSDP2 on a "ring" mesh makes, by kind."""
    from torch.distributed.fsdp import fully_shard

    whole = model()
    fully_shard(whole, mesh=mesh_of("ring", group.size()))
    with executions() as names:
        train(whole, [batch(group.rank(), 0)])
    return Counter(names)


def test_a_ring_mesh_runs_our_schedules(ring_ranks: RankPool) -> None:
    """Gathering the parameters once, reducing the gradients once."""
    assert ring_ranks.run(counted, num_ranks=2) == [{"all_gather": 1, "reduce_scatter": 1}] * 2


def mesh_of_sub_groups() -> DeviceMesh:
    """Two by two ranks, on "ring"; all four ranks make all four groups."""
    members = [[0, 1], [2, 3], [0, 2], [1, 3]]
    rank = dist.get_rank()
    rows = [dist.new_group(each, backend="ring") for each in members]
    own = [rows[2 + rank % 2], rows[rank // 2]]
    return DeviceMesh.from_group(own, "cpu", torch.arange(4).view(2, 2), mesh_dim_names=("replicate", "shard"))


def hybrid(group: dist.ProcessGroup) -> list[torch.Tensor]:
    """The same, sharded over two ranks and replicated over two, on a mesh of sub-groups."""
    from torch.distributed.fsdp import fully_shard

    rank, mesh = group.rank(), mesh_of_sub_groups()
    whole = model()
    fully_shard(whole, mesh=mesh)
    train(whole, batches_of(rank))
    return [parameter.full_tensor().detach() for parameter in whole.parameters()]


def test_hybrid_sharding(ring_ranks: RankPool) -> None:
    """Two by two: gradients are reduced in one group and then across in another."""
    results = ring_ranks.run(hybrid, num_ranks=4)
    for parameters in results:
        for mine, first, expected in zip(parameters, results[0], unsharded(4), strict=True):
            assert torch.equal(mine, first)
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
