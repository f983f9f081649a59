"""Every strategy makes the gradients of all ranks their mean, and says truly what it sends."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from trainers.cli import STRATEGY_NAMES
from trainers.flat import FlatGradients
from trainers.strategies import STRATEGIES, Ddp


def small_model() -> nn.Module:
    """Odd sizes, 29 parameters, the same weights everywhere."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.LayerNorm(2, elementwise_affine=False), nn.Linear(2, 1)
    )


def inputs(rank: int) -> torch.Tensor:
    """Each rank's own data."""
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(100 + rank))


def gradients(model: nn.Module, rank: int) -> list[torch.Tensor]:
    """The gradients of one rank's loss, by itself."""
    model.zero_grad()
    model(inputs(rank)).pow(2).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def synchronised(group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    """The gradients after two steps of one strategy: the second shows what is left over from the first."""
    model = small_model()
    strategy = STRATEGIES[name](model, group)
    for _ in range(2):
        strategy.module.zero_grad()
        strategy.module(inputs(group.rank())).pow(2).sum().backward()
        strategy.synchronise()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", STRATEGIES)
def test_gradients_become_the_mean(ranks: RankPool, name: str, num_ranks: int) -> None:
    """The same on all ranks, bit for bit, and the mean of what each rank has by itself."""
    results = ranks.run(synchronised, name, num_ranks=num_ranks)
    alone = [gradients(small_model(), rank) for rank in range(num_ranks)]
    for index, parts in enumerate(zip(*alone, strict=True)):
        torch.testing.assert_close(results[0][index], torch.stack(parts).mean(0))
        assert all(torch.equal(result[index], results[0][index]) for result in results)


def unused(group: dist.ProcessGroup, name: str) -> list[torch.Tensor | None]:
    """Gradients where one parameter has taken no part in the loss."""
    model = small_model()
    strategy = STRATEGIES[name](model, group)
    first = next(iter(model.parameters()))
    first.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    strategy.module(inputs(group.rank())).pow(2).sum().backward()
    strategy.synchronise()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("name", ["allreduce", "rs_ag", "ring"])
def test_a_parameter_without_a_gradient_is_no_obstacle(ranks: RankPool, name: str) -> None:
    """It stays without one, or has zeros; the others are synchronised."""
    alone = [gradients(small_model(), rank) for rank in range(2)]
    for result in ranks.run(unused, name, num_ranks=2):
        assert result[0] is None or not result[0].any()
        torch.testing.assert_close(result[-1], (alone[0][-1] + alone[1][-1]) / 2)


def traffic(group: dist.ProcessGroup, name: str, leads_s: list[float]) -> list[tuple[str, str, int, float]]:
    """What a strategy says it sends."""
    calls = STRATEGIES[name](small_model(), group).traffic(leads_s).calls
    return [(c.schedule.collective.value, c.schedule.algorithm, c.size_bytes, c.lead_s) for c in calls]


def test_traffic_of_each_strategy(ranks: RankPool) -> None:
    """29 float32 parameters over two ranks: 16 + 10 + 3 in layers, one collective or many."""
    leads_s = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    sizes = [48, 16, 32, 8, 8, 4]
    run = {name: ranks.run(traffic, name, leads_s, num_ranks=2)[0] for name in STRATEGIES}
    assert run["allreduce"] == [("all_reduce", "gloo_ring", size, 0.0) for size in sizes]
    assert run["rs_ag"] == [("all_reduce", "gloo_ring", 60, 0.0)] * 2 + [("all_gather", "gloo_ring", 120, 0.0)]
    assert run["ring"] == [("all_reduce", "ring", 116, 0.0)]
    assert run["ddp"] == [("all_reduce", "gloo_ring", 116, 0.0)]


def ddp_buckets(group: dist.ProcessGroup) -> tuple[list[int], list[int]]:
    """The bucket sizes that DDP has rebuilt after the first step, and ours from the order of readiness."""
    layers = [nn.Linear(300, 300, bias=False) for _ in range(9)]  # 0.36 MB each
    model = nn.Sequential(*layers)
    strategy = Ddp(model, group)
    for _ in range(3):
        strategy.module(torch.ones(1, 300)).sum().backward()
    theirs = strategy.module._get_ddp_logging_data()["rebuilt_bucket_sizes"]  # type: ignore[operator]
    leads_s = [float(index) for index in range(9)]  # the last layer's gradient is ready first
    return [int(size) for size in str(theirs).split(",")], [c.size_bytes for c in strategy.traffic(leads_s).calls]


def test_buckets_are_those_of_ddp(ranks: RankPool) -> None:
    """What torch itself reports."""
    for theirs, ours in ranks.run(ddp_buckets, num_ranks=2):
        assert theirs == ours
        assert len(ours) == 2


def test_flat_gradients_need_one_dtype() -> None:
    """The message says what was found."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"parameters of 2 dtypes and devices .*float32.*: needs one"):
        FlatGradients(model)


def test_the_command_line_knows_every_strategy() -> None:
    """It lists their names itself, since it checks options before it loads torch."""
    assert tuple(STRATEGIES) == STRATEGY_NAMES
