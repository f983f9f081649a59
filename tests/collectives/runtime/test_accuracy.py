"""Gain in accuracy by adding 16-bit tensors in float32: run it as a module for the figures."""

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.ranks import RankPool

LENGTH = 100_000
CHOICES = [("ring", None), ("ring", torch.float32), ("two_shot", None), ("two_shot", torch.float32)]
Errors = tuple[float, float]


def contribution(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Positive numbers, so that no sum is small by cancellation and one ulp means the same everywhere."""
    generator = torch.Generator().manual_seed(rank)
    return (torch.rand(LENGTH, generator=generator) + 0.5).to(dtype)


def errors_ulp(result: torch.Tensor, num_ranks: int) -> Errors:
    """Largest and mean distance from the sum in float64, in units of the last place of the result's dtype."""
    exact = torch.stack([contribution(rank, result.dtype).double() for rank in range(num_ranks)]).sum(0)
    ulp = torch.finfo(result.dtype).eps * 2.0 ** torch.floor(torch.log2(exact))
    distance = (result.double() - exact).abs() / ulp
    return float(distance.max()), float(distance.mean())


def measured(group: dist.ProcessGroup, dtype: torch.dtype) -> list[Errors]:
    """The errors of each choice, and of dist.all_reduce."""
    found = []
    for algorithm, accumulate in CHOICES:
        tensor = contribution(group.rank(), dtype)
        collectives.all_reduce(tensor, group=group, algorithm=algorithm, accumulate=accumulate)
        found.append(errors_ulp(tensor, group.size()))
    tensor = contribution(group.rank(), dtype)
    dist.all_reduce(tensor, group=group)
    return [*found, errors_ulp(tensor, group.size())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("num_ranks", [4, 5])
def test_float32_accumulation_gains(ranks: RankPool, dtype: torch.dtype, num_ranks: int) -> None:
    """Each owner adding in float32, the sum is rounded once: half an ulp, a clear factor below any 16-bit sum."""
    results = ranks.run(measured, dtype, num_ranks=num_ranks)
    assert all(result == results[0] for result in results)
    (ring_max, ring_mean), _, _, (best_max, best_mean), (gloo_max, gloo_mean) = results[0]
    assert best_max <= 0.501  # half, and what float32 itself rounds
    assert min(ring_max, gloo_max) > 2 * best_max
    assert (
        min(ring_mean, gloo_mean) > 1.25 * best_mean
    )  # measured: 1.4 (the ideal rounding has an error of a quarter on average)


def main() -> None:
    """Print the table."""
    names = [f"{algorithm}, {f'added in {a}' if a else 'added as it is'}" for algorithm, a in CHOICES]
    with RankPool(5) as pool:
        for dtype in (torch.bfloat16, torch.float16):
            for num_ranks in (4, 5):
                rows = pool.run(measured, dtype, num_ranks=num_ranks)[0]
                for name, (largest, mean) in zip([*names, "dist.all_reduce"], rows, strict=True):
                    print(f"{dtype}, {num_ranks} ranks, {name}: max {largest:.3f} ulp, mean {mean:.3f} ulp")  # noqa: T201


if __name__ == "__main__":
    main()
