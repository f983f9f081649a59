"""With shares of the gradients, torch's own clipping and GradScaler do what they do with whole gradients."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.trainers.models import inputs, parameters_of, small_model
from trainers.data_parallel import DataParallel
from trainers.strategies.withheld import ShareGradient

SHARDED = ["zero1", "zero2/0.00005", "zero3"]
INFINITE = {1: 1, 4: 0, 5: 2}  # in which step which rank has an infinite gradient


def optimized(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Of all groups, as frameworks collect them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def clipped(group: dist.ProcessGroup, name: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """The parameters after steps with gradients that were clipped by value and norm, and what the norms were."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    norms = []
    for step in range(4):
        optimizer.zero_grad()
        parallel(inputs(group.rank() + 7 * step)).pow(2).mean().backward()
        nn.utils.clip_grad_value_(optimized(optimizer), 0.5)
        norms.append(nn.utils.clip_grad_norm_(optimized(optimizer), 0.3, **options))
        optimizer.step()
    parallel.unshard()
    return [*norms, *parameters_of(parallel)]


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("options", [{}, {"norm_type": math.inf}, {"norm_type": 3, "foreach": True}])
def test_clipping_is_by_the_norm_over_all_ranks(ranks: RankPool, name: str, options: dict[str, Any]) -> None:
    """Of the parameters that the optimizer has, by value, too."""
    expected = ranks.run(clipped, "ring", options, num_ranks=3)[0]
    for found in ranks.run(clipped, name, options, num_ranks=3):
        torch.testing.assert_close(found, expected)


def norms(group: dist.ProcessGroup) -> list[float]:
    """The norm of 1, 2, 3, 4 over two ranks, asked for in torch's ways; beside a gradient that all ranks have."""
    share = ShareGradient.of(torch.tensor([1.0, 2.0]) + 2 * group.rank(), group)
    several = torch._foreach_norm([share, torch.tensor([3.0, 4.0])], 1)
    return [
        *(norm.item() for norm in (share.norm(), torch.norm(share, p=1), torch.linalg.norm(share, ord=math.inf))),
        *(same.norm(2).item() for same in (share.detach(), share.data, share.detach().data.float(), share.double())),
        *(norm.item() for norm in several),
    ]


def test_norms_are_those_of_all_shares(ranks: RankPool) -> None:
    """By all functions that torch has for it, and of the same values without a graph, or in another dtype."""
    for found in ranks.run(norms, num_ranks=2):
        assert found == pytest.approx([math.sqrt(30), 10, 4, *[math.sqrt(30)] * 4, 10, 7])


def refused(group: dist.ProcessGroup) -> str:
    """Return the error of a count of the elements that are not 0."""
    try:
        torch.linalg.vector_norm(ShareGradient.of(torch.ones(2), group), 0)
    except ValueError as error:
        return str(error)
    return ""


def test_a_norm_that_padding_changes_is_refused(ranks: RankPool) -> None:
    """As that of order 0."""
    assert ranks.run(refused, num_ranks=2)[1].startswith("norm of order 0: the order must be greater than 0")


def scaled(group: dist.ProcessGroup, name: str, unscales: bool) -> list[torch.Tensor]:
    """The parameters after steps with a GradScaler, some of which one rank would have to leave out; and its scales."""
    model = small_model()
    parallel = DataParallel(model, name, group)
    optimizer = parallel.optimizer(partial(torch.optim.AdamW, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    scales = []
    for step in range(8):
        optimizer.zero_grad()
        loss = parallel(inputs(group.rank() + 7 * step)).pow(2).mean()
        spoiler = model.get_parameter("0.bias").register_hook(spoiled if INFINITE.get(step) == group.rank() else as_is)
        scaler.scale(loss).backward()
        spoiler.remove()
        if unscales:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(optimized(optimizer), 0.3)
        scaler.step(optimizer)
        scaler.update()
        scales.append(torch.tensor(scaler.get_scale()))
    parallel.unshard()
    return [*scales, *parameters_of(parallel)]


def as_is(gradient: torch.Tensor) -> torch.Tensor:
    """A hook that changes nothing."""
    return gradient


def spoiled(gradient: torch.Tensor) -> torch.Tensor:
    """One infinite element, which is in the share of one rank only."""
    return gradient + torch.tensor([0.0, 0.0, math.inf, 0.0])


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("unscales", [False, True])
def test_all_ranks_leave_out_a_step_with_an_infinite_gradient(ranks: RankPool, name: str, unscales: bool) -> None:
    """Whoever has it in its share; scales go on growing and shrinking alike."""
    expected = ranks.run(scaled, "ring", unscales, num_ranks=3)[0]
    assert [scale.item() for scale in expected[:8]] == [64, 32, 32, 64, 32, 16, 16, 32]
    for found in ranks.run(scaled, name, unscales, num_ranks=3):
        torch.testing.assert_close(found, expected)
