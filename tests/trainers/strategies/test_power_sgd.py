"""`powersgd`: gradients as products of thin matrices, with what is left out added to the next ones."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from trainers.data_parallel import DataParallel

ROWS, COLUMNS, STEPS = 6, 5, 5


class Layers(nn.Module):
    """A matrix, a convolution, a vector, a layer that rank 1 alone uses, and one that nobody does."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.matrix = nn.Linear(COLUMNS, ROWS, dtype=dtype)
        self.convolution = nn.Conv1d(4, 7, 3, dtype=dtype)
        self.some, self.never = nn.Linear(COLUMNS, ROWS, dtype=dtype), nn.Linear(COLUMNS, ROWS, dtype=dtype)

    def forward(self, rank: int, step: int) -> torch.Tensor:
        """The loss of the rank's own data."""
        dtype = self.matrix.weight.dtype
        generator = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(8, COLUMNS, generator=generator).to(dtype)
        images = torch.randn(8, 4, 5, generator=generator).to(dtype)
        loss: torch.Tensor = self.matrix(x).pow(3).mean() + self.convolution(images).pow(2).mean()
        return loss + self.some(x).pow(2).mean() if rank == 1 else loss


Gradients = list[list[torch.Tensor | None]]


def synchronised(group: dist.ProcessGroup, name: str, dtype: torch.dtype) -> tuple[Gradients, Gradients]:
    """The rank's own gradients and the synchronised ones, in each of some steps of the same weights."""
    models = Layers(dtype), DataParallel(Layers(dtype), name, group)
    results: tuple[Gradients, Gradients] = [], []
    for step in range(STEPS):
        for model, gradients in zip(models, results, strict=True):
            model.zero_grad()
            model(group.rank(), step).backward()
            gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    return results


def expected_matrices(own: list[torch.Tensor], right: torch.Tensor) -> list[torch.Tensor]:
    """The algorithm of the paper for one matrix: own: (steps, ranks, rows, columns); right: the first factor."""
    errors, products = torch.zeros_like(own[0]), []
    for gradients in own:
        sent = gradients + errors
        left = torch.linalg.qr((sent @ right).mean(dim=0)).Q
        right = (sent.mT @ left).mean(dim=0)
        products.append(left @ right.T)
        errors = sent - products[-1]
    return products


def test_it_is_the_algorithm_of_the_paper(ranks: RankPool) -> None:
    """Product after product, with errors that are added to the next gradients; the ranks get the same bits."""
    results = ranks.run(synchronised, "powersgd/1", torch.float64, num_ranks=3)
    own = [torch.stack([rank[0][step][0] for rank in results]) for step in range(STEPS)]
    first = torch.randn(2 * COLUMNS + 12 + COLUMNS, generator=torch.Generator().manual_seed(0)).double()
    products = expected_matrices(own, first[:COLUMNS].view(COLUMNS, 1))
    for step, product in enumerate(products):
        torch.testing.assert_close(results[0][1][step][0], product)
        assert torch.linalg.matrix_rank(product) == 1
    for other in results[1:]:
        torch.testing.assert_close(other[1], results[0][1], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_left_out_comes_later(ranks: RankPool, dtype: torch.dtype) -> None:
    """Over some steps the sum of the gradients lacks no more than the last error; vectors lack nothing.

    All ranks get the gradients that one rank has; parameters that nobody uses stay without.
    """
    (own, shared), (other, same) = ranks.run(synchronised, "powersgd/2", dtype, num_ranks=2)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    for gradients in (*shared, *same):
        assert [gradient is None for gradient in gradients] == [False] * 6 + [True] * 2
    for index in range(4):
        wanted, found = (torch.stack([step[index] for step in steps]) for steps in (own, shared))
        wanted = (wanted + torch.stack([step[index] for step in other])) / 2
        if wanted[0].dim() == 1:
            torch.testing.assert_close(found, wanted, **tolerance)
        else:
            assert (found.sum(dim=0) - wanted.sum(dim=0)).norm() < 0.5 * wanted.sum(dim=0).norm()
