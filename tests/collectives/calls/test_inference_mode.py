"""Calls within torch.inference_mode and outside of it, in turn: what is kept from one to the other serves both."""

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.ranks import RankPool

LONG = 600_000  # elements, of which a chunk is too long to be eager


def all_calls(group: dist.ProcessGroup, length: int) -> list[float]:
    """The first element of what each kind of call leaves."""
    ones, half = torch.ones(length), torch.ones(length, dtype=torch.bfloat16)
    share, whole = torch.empty(length // 2), torch.empty(length)
    collectives.all_reduce(ones, group=group)
    collectives.all_reduce(half, group=group, accumulate=torch.float32)
    collectives.all_reduce(turned := torch.ones(2, length // 2).t(), group=group, wire=torch.bfloat16)
    collectives.reduce_scatter_tensor(share, torch.ones(length), group=group)
    collectives.all_gather_into_tensor(whole, share, group=group)
    return [ones[0].item(), half[0].item(), turned[0, 0].item(), share[0].item(), whole[-1].item()]


def in_both_modes(group: dist.ProcessGroup, transport: str) -> list[list[float]]:
    """Return what calls leave in inference mode, outside, and in it again."""
    collectives.use_transport(transport, group)
    results = []
    for inference in (True, False, True):
        with torch.inference_mode(inference):
            results += [all_calls(group, length) for length in (8, LONG)]
    return results


@pytest.mark.parametrize("transport", ["gloo", "auto"])
def test_modes_take_turns(transport: str) -> None:
    """An evaluation in inference mode may be the first to call, and training follows."""
    with RankPool(2) as pool:
        for results in pool.run(in_both_modes, transport, num_ranks=2):
            assert results == [[2.0] * 5] * 6
