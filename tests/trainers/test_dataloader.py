"""The example with torch's DataLoader: two ranks learn what one process learns."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks import RankPool

EXAMPLE = Path(__file__).parents[2] / "examples" / "dataloader.py"


def example() -> Any:
    """The module, which is in no package."""
    spec = importlib.util.spec_from_file_location("dataloader", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(group: dist.ProcessGroup) -> list[torch.Tensor]:
    """The parameters on this rank after a few epochs."""
    module = example()
    module.EPOCHS = 3
    return [parameter.detach().clone() for parameter in module.train(group).parameters()]


def test_two_ranks_learn_what_one_process_learns(ranks: RankPool) -> None:
    """From the same batches, the last of an epoch among them; the example trains nothing but that."""
    [alone] = ranks.run(trained, num_ranks=1)
    first, second = ranks.run(trained, num_ranks=2)
    torch.testing.assert_close(first, alone, rtol=1e-3, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
