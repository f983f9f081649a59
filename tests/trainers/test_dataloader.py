"""The example with torch's DataLoader: two ranks learn what one process learns."""

import importlib
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.models import parameters_of

EXAMPLES = str(Path(__file__).parents[2] / "examples")


def trained(group: dist.ProcessGroup) -> list[torch.Tensor]:
    """The parameters on this rank after a few epochs."""
    with mock.patch.object(sys, "path", [EXAMPLES, *sys.path]):
        module: Any = importlib.import_module("dataloader")
    module.EPOCHS = 3
    return parameters_of(module.train(group))


def test_two_ranks_learn_what_one_process_learns(ranks: RankPool) -> None:
    """From the same batches, the last of an epoch among them; the example trains nothing but that."""
    [alone] = ranks.run(trained, num_ranks=1)
    first, second = ranks.run(trained, num_ranks=2)
    torch.testing.assert_close(first, alone, rtol=1e-3, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
