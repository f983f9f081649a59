"""The fragments of docs/programs.md, on real ranks, with the names that they take for granted."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import collectives
from tests.docs.pages import blocks
from tests.ranks import RankPool

MARK = "not run: a fragment; tests/docs/test_fragments.py runs it on real ranks"


def run_fragments(group: dist.ProcessGroup) -> list[float]:
    """Return the tensors of the first two calls, after all fragments have run."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    tensor, shard = torch.tensor([float(group.rank())]), torch.empty(2)
    layer = torch.nn.Linear(2, 2)
    names: dict[str, Any] = {
        **{"collectives": collectives, "dist": dist, "torch": torch, "partial": partial, "group": group},
        **{"tensor": tensor, "shard": shard, "whole": torch.ones(2 * group.size())},
        "model": torch.nn.parallel.DistributedDataParallel(layer),
        "module": fully_shard(torch.nn.Linear(2, 2), mesh=init_device_mesh("cpu", (group.size(),))),
        "batch": torch.ones(3, 2),
        "loss": torch.sum,
    }
    fragments = [block for block in blocks("docs/programs.md") if block.mark == MARK]
    for block in fragments:
        if "DataParallel(model" in block.text:
            names["model"] = torch.nn.Linear(2, 2)  # a model as it is before DistributedDataParallel
            torch.nn.init.ones_(names["model"].weight)  # the same on all ranks
            torch.nn.init.ones_(names["model"].bias)
        exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
    names["work"].wait()
    return [float(len(fragments)), tensor.item(), *shard.tolist()]


def test_the_fragments_run() -> None:
    """And reduce what they say: the maximum of the ranks' numbers, and each rank's share of a sum of ones."""
    with RankPool(2) as pool:
        assert pool.run(run_fragments, timeout_s=120) == [[3.0, 1.0, 2.0, 2.0]] * 2
