"""`Reduction`: the result does not depend on which of two contributions comes first."""

import itertools

import pytest
import torch
from torch.distributed import ReduceOp

from collectives.calls.reduction import reduction_of

ZEROS = (0.0, -0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.complex128])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG])
@pytest.mark.parametrize("length", [1, 17])
def test_zeros_of_both_signs_are_added_alike_in_either_order(
    dtype: torch.dtype, op: ReduceOp.RedOpType, length: int
) -> None:
    """Ranks that exchange their contributions are left with the same bits, also in the parts of complex numbers."""
    parts = 2 if dtype.is_complex else 1
    reduction = reduction_of(op, dtype)
    for first, second in itertools.product(itertools.product(ZEROS, repeat=parts), repeat=2):
        results = []
        for one, other in ((first, second), (second, first)):
            chunk, arrived = (_filled(length, parts_of_one, dtype) for parts_of_one in (one, other))
            reduction.combine(chunk, arrived)
            reduction.finish(chunk, 2)
            results.append(chunk.view(torch.uint8))
        assert torch.equal(*results), (first, second)


def _filled(length: int, parts: tuple[float, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of which each number has these parts."""
    value = torch.complex(*(torch.tensor(part) for part in parts)) if dtype.is_complex else torch.tensor(parts[0])
    return value.to(dtype).repeat(length)
