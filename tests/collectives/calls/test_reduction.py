"""`Reduction`: sums that leave the range of a dtype, and what is refused; test_semantics has zeros of both signs."""

import itertools
import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import collectives
from collectives.calls.reduction import reduction_of
from tests.collectives.shared_groups import sharing_group
from tests.ranks import RankPool

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
Dtypes = tuple[torch.dtype, torch.dtype | None]  # of the tensor, on the wire
FULL: dict[Dtypes, int] = {  # a value, which is also the mean of the ranks, but not their sum, is in the range
    (torch.float32, E4M3): 320,
    (torch.float32, E5M2): 40960,
    (torch.bfloat16, torch.float8_e4m3fnuz): 160,
    (torch.float64, torch.float16): 40960,
    (torch.float16, None): 40960,
    (torch.complex32, None): 40960,
    (torch.int8, None): -101,
    (torch.uint8, None): 250,
    (torch.int32, None): 2**30,
}


def means(group: dist.ProcessGroup, dtypes: Dtypes, value: float) -> list[list[float]]:
    """Real parts of the mean of three equal numbers, from each function that makes one."""
    dtype, wire = dtypes
    options, results = {"group": group, "wire": wire}, []
    for algorithm in ("ring", "direct", "recursive_doubling"):
        results.append(torch.full((7,), value, dtype=torch.float64).to(dtype))
        collectives.all_reduce(results[-1], ReduceOp.AVG, algorithm=algorithm, **options)
    given, share = results[0].new_zeros(3, 4), results[0].new_zeros(4)
    given.copy_(torch.full((3, 4), value))
    collectives.reduce_scatter_tensor(share, given, ReduceOp.AVG, **options)
    collectives.reduce(given, 0, ReduceOp.AVG, **options)  # which still holds what this rank gave
    return [tensor.to(torch.complex128).real.flatten().tolist() for tensor in (*results, share, given)]


@pytest.mark.parametrize("dtypes", FULL, ids=str)
def test_a_mean_that_fits_is_right_though_the_sum_does_not_fit(ranks: RankPool, dtypes: Dtypes) -> None:
    """In all dtypes that are narrow, as that of the tensor or on the wire, and by all functions."""
    for results in ranks.run(means, dtypes, FULL[dtypes], num_ranks=3):
        for number in itertools.chain(*results):
            assert number == pytest.approx(FULL[dtypes], rel=0.07 if dtypes[0].is_floating_point else 1e-3)


def out_of_range(group: dist.ProcessGroup, transport: str) -> list[float]:
    """A result beyond the range of float8_e4m3fn, on the wire."""
    on, results = sharing_group(group.size(), transport), []
    ops = ReduceOp.SUM, ReduceOp.SUM, ReduceOp.MAX, ReduceOp.AVG
    for op, value in zip(ops, (300.0, -300.0, math.inf, math.inf), strict=True):
        tensor = torch.full((5,), value)
        collectives.all_reduce(tensor, op, on, wire=E4M3)
        results.append(tensor[0].item())
    return results


@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_what_leaves_the_range_is_not_taken_for_a_number(ranks: RankPool, transport: str) -> None:
    """It ends at 448, and torch makes 448 of 600 and of infinity."""
    for results in ranks.run(out_of_range, transport):
        assert [math.isnan(result) for result in results] == [True] * 4, results


def test_refusals() -> None:
    """The message names the operation by its name, and what a dtype lacks."""
    with pytest.raises(ValueError, match="op PREMUL_SUM: must be one of SUM, "):
        reduction_of(dist._make_nccl_premul_sum(2.0), torch.float32)
    for dtype in ("float8_e8m0fnu", "float4_e2m1fn_x2"):
        with pytest.raises(ValueError, match=f"wire torch.{dtype}: must hold numbers of either sign"):
            reduction_of(ReduceOp.SUM, torch.float32, wire=getattr(torch, dtype))
