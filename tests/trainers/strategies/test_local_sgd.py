"""`local_sgd` and `diloco`: steps that each rank takes by itself, and averages of the parameters."""

import copy
import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.refusals import said_by
from tests.trainers.models import Tied, inputs, parameters_of, seeded, small_model, take_step
from trainers.data_parallel import DataParallel, DriftError
from trainers.strategies.local_sgd import OuterMomentum

ADAM = partial(torch.optim.AdamW, lr=0.05)
STEPS, EVERY = 7, 3


class Lookahead(torch.optim.Optimizer):
    """Steps as another optimizer does, which it has inside."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.inner = ADAM(parameters)
        super().__init__(self.inner.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step(closure)


def trained(group: dist.ProcessGroup, name: str) -> tuple[list[torch.Tensor], list[torch.Tensor], str]:
    """The parameters after some steps, those after an average, and what a comparison says before it."""
    model = seeded(Tied)
    parallel = DataParallel(model, name, group)
    optimizer = parallel.optimizer(Lookahead if name.startswith("local") else ADAM)
    for number in range(STEPS):
        take_step(parallel, optimizer, group.rank() + 7 * number)
        for parameter in parallel.parameters():  # which then lie elsewhere, as after model.to(...)
            parameter.data = parameter.data.clone()
    own = parameters_of(model)
    said = said_by(DriftError, parallel.check_identical)
    parallel.sync_parameters()
    parallel.sync_parameters()  # once more changes nothing
    parallel.check_identical()
    return own, parameters_of(model), said


def trained_alone(num_ranks: int, outer: OuterMomentum | None) -> tuple[list[nn.Module], nn.Module]:
    """The same in one process, with torch's own SGD as the outer optimizer: all ranks' models, and their average."""
    averaged = seeded(Tied)
    models = [copy.deepcopy(averaged) for _ in range(num_ranks)]
    optimizers = [ADAM([p for p in model.parameters() if p.requires_grad]) for model in models]
    trained = [p for p in averaged.parameters() if p.requires_grad]
    momentum, rate = (outer.momentum, outer.learning_rate) if outer else (0.0, 1.0)
    outer_sgd = torch.optim.SGD(trained, lr=rate, momentum=momentum, nesterov=outer is not None)

    def average() -> None:
        pairs = [[p for p in model.parameters() if p.requires_grad] for model in models]
        for parameter, *on_ranks in zip(trained, *pairs, strict=True):
            parameter.grad = parameter.detach() - torch.stack([p.detach() for p in on_ranks]).mean(dim=0)
        outer_sgd.step()

    for number in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            take_step(model, optimizer, rank + 7 * number)
        if (number + 1) % EVERY == 0:
            average()
            for model in models:
                model.load_state_dict(averaged.state_dict())
    average()
    return models, averaged


@pytest.mark.parametrize(("name", "outer"), [("local_sgd/3", None), ("diloco/3", OuterMomentum())])
def test_it_is_what_one_process_computes(ranks: RankPool, name: str, outer: OuterMomentum | None) -> None:
    """Ranks hold other parameters between averages, which a comparison says, and the same after the last.

    The optimizer may step another one.
    """
    models, averaged = trained_alone(3, outer)
    for rank, (own, last, said) in enumerate(ranks.run(trained, name, num_ranks=3)):
        torch.testing.assert_close(own, parameters_of(models[rank]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(last, parameters_of(averaged), rtol=1e-4, atol=1e-5)
        assert "differs between rank 0 and ranks 1, 2" in said


def with_scaler(group: dist.ProcessGroup, unscales: bool, fused: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parameters before and after the average; rank 1 has an infinite gradient in one of three steps."""
    parallel = DataParallel(small_model(), "local_sgd/3", group)
    optimizer = parallel.optimizer(partial(torch.optim.AdamW, lr=0.05, fused=fused))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    before = []
    for number in range(3):
        before = parameters_of(parallel)
        optimizer.zero_grad()
        loss = parallel(inputs(group.rank() + 7 * number)).pow(2).mean()
        scaler.scale(loss * math.inf if (group.rank(), number) == (1, 1) else loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == (32 if group.rank() == 1 else 64)
    return before, parameters_of(parallel)


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_rank_leaves_out_its_step_with_an_infinite_gradient(ranks: RankPool, unscales: bool, fused: bool) -> None:
    """As one process on its data would do; the step counts, so that all ranks average at once."""
    models: list[list[torch.Tensor]] = []
    found = ranks.run(with_scaler, unscales, fused, num_ranks=2)
    for rank, (own, _) in enumerate(found):
        model = small_model()
        optimizer = ADAM(model.parameters())
        for number in range(3):
            if number == 2:
                torch.testing.assert_close(own, parameters_of(model))
            if (rank, number) != (1, 1):
                take_step(model, optimizer, rank + 7 * number)
        models.append(parameters_of(model))
    mean = [torch.stack(parameters).mean(dim=0) for parameters in zip(*models, strict=True)]
    for _, averaged in found:
        torch.testing.assert_close(averaged, mean)
