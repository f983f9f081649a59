"""FSDP2 on our schedules, by custom communication or by the backend "ring", trains as on Gloo."""

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


def mesh_of_sub_groups() -> DeviceMesh:
    """Return a mesh of two by two ranks, on "ring"; all four ranks make all four groups."""
    rows = [dist.new_group(members, backend="ring") for members in ([0, 1], [2, 3], [0, 2], [1, 3])]
    own = [rows[2 + dist.get_rank() % 2], rows[dist.get_rank() // 2]]
    return DeviceMesh.from_group(own, "cpu", torch.arange(4).view(2, 2), mesh_dim_names=("replicate", "shard"))


def sharded(group: dist.ProcessGroup, way: str) -> tuple[list[torch.Tensor], set[str]]:
    """Return the whole parameters after training, sharded over the group, and our collectives in a step."""
    from torch.distributed.fsdp import fully_shard

    from collectives.integrations.fsdp import FSDPAllGather, FSDPReduceScatter

    is_ring = way == "ring"
    mesh = mesh_of_sub_groups() if way == "hybrid" else mesh_of("ring" if is_ring else "gloo", group.size())
    whole = model()
    for module in (whole[0], whole[2], whole):
        fully_shard(module, mesh=mesh)
        if way.startswith("custom"):
            wire = torch.bfloat16 if way == "custom, bfloat16" else None
            module.set_custom_all_gather(FSDPAllGather())
            module.set_custom_reduce_scatter(FSDPReduceScatter("direct" if wire else "ring", wire=wire))
        if way == "custom, asynchronous":
            module._set_unshard_async_op(True)
    train(whole, batches_of(group.rank())[:-1])
    with executions() as noted:
        train(whole, batches_of(group.rank())[-1:])
    return [parameter.full_tensor().detach() for parameter in whole.parameters()], {name for name, *_ in noted}


def unsharded(num_ranks: int) -> list[torch.Tensor]:
    """The parameters after training in one process, on the batches of all ranks together."""
    whole = model()
    train(whole, [torch.cat([batch(rank, step) for rank in range(num_ranks)]) for step in range(STEPS)])
    return [parameter.detach() for parameter in whole.parameters()]


CASES = [(way, n) for way in ("gloo", "ring", "custom", "custom, asynchronous", "custom, bfloat16") for n in (1, 2, 3)]


@pytest.mark.parametrize(("way", "num_ranks"), [*CASES, ("hybrid", 4)])
def test_training(ring_ranks: RankPool, num_ranks: int, way: str) -> None:
    """The parameters are those of one process with all the data, and the same bits on all ranks.

    hybrid: two by two, where gradients are reduced in one group and then across in another.
    """
    results = ring_ranks.run(sharded, way, num_ranks=num_ranks)
    tolerance = {"rtol": 1e-2, "atol": 1e-3} if "bfloat16" in way else {"rtol": 1e-5, "atol": 1e-6}
    for rank, (parameters, names) in enumerate(results):
        for mine, first, expected in zip(parameters, results[0][0], unsharded(num_ranks), strict=True):
            assert torch.equal(mine, first), rank
            torch.testing.assert_close(mine, expected, **tolerance)
        if way == "gloo":
            assert not names
        elif num_ranks > 1:
            assert names >= {"all_gather", "reduce_scatter"}
