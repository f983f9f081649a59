"""`algorithm="gloo_ring"` adds in Gloo's own order: the very bits of dist.all_reduce."""

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.collectives.runtime.test_executor import data
from tests.ranks import RankPool

# 2 segments a rank, then more than 1 MiB each; remainders of all kinds; the first again, once others are remembered.
LENGTHS = [0, 1, 2, 3, 4, 5, 7, 9, 11, 17, 33, 97, 1001, 65_537, 524_289, 1_048_577, 1_310_725, 3_000_001, 7, 1001]


def differing(group: dist.ProcessGroup, dtype: torch.dtype, op: str, lengths: list[int]) -> tuple[list[int], int]:
    """The lengths at which the bits of the two differ, and at how many of them those of our own ring do."""
    different, ring_different = [], 0
    for length in lengths:
        by_us, by_ring, by_gloo = (data(group.rank(), length, dtype) for _ in range(3))
        collectives.all_reduce(by_us, getattr(dist.ReduceOp, op), group, algorithm="gloo_ring")
        collectives.all_reduce(by_ring, getattr(dist.ReduceOp, op), group)
        dist.all_reduce(by_gloo, getattr(dist.ReduceOp, op), group)
        if not torch.equal(by_us, by_gloo):
            different.append(length)
        ring_different += not torch.equal(by_ring, by_gloo)
    return different, ring_different


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5])
def test_the_bits_are_gloo_s(ranks: RankPool, num_ranks: int) -> None:
    """At any size, with segments of half a share or of 1 MiB; our ring runs the other way and has others."""
    for different, ring_different in ranks.run(differing, torch.float32, "SUM", LENGTHS, num_ranks=num_ranks):
        assert different == []
        assert ring_different > 5 or num_ranks < 3  # of two, either order is the same


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", ["SUM", "AVG", "PRODUCT"])
def test_of_other_dtypes_too(ranks: RankPool, dtype: torch.dtype, op: str) -> None:
    """Gloo's own loops for 16 bits round at every hop, as ours do; but a mean in float16 is divided first here."""
    lengths = [1, 5, 17, 97, 1001, 600_001]
    for different, _ in ranks.run(differing, dtype, op, lengths, num_ranks=5):
        assert set(different) <= set(lengths if (op, dtype) == ("AVG", torch.float16) else [])
