"""`local_sgd` and `diloco`: steps that each rank takes by itself, and averages of the parameters."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.trainers.models import Tied, inputs, seeded, small_model
from trainers.data_parallel import DataParallel, DriftError
from trainers.strategies import OuterMomentum

ADAM = partial(torch.optim.AdamW, lr=0.05)
STEPS, EVERY = 7, 3
Make = Callable[[], nn.Module]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, number: int) -> None:
    """On the rank's own data."""
    optimizer.zero_grad()
    model(inputs(rank + 7 * number)).pow(2).mean().backward()
    optimizer.step()


def trained(group: dist.ProcessGroup, name: str, make: Make) -> tuple[list[torch.Tensor], list[torch.Tensor], str]:
    """The parameters after some steps, those after an average, and what a comparison says before it."""
    model = make()
    parallel = DataParallel(model, name, group)
    optimizer = parallel.optimizer(ADAM)
    for number in range(STEPS):
        step(parallel, optimizer, group.rank(), number)
    own, said = [p.detach().clone() for p in model.parameters()], ""
    try:
        parallel.check_identical()
    except DriftError as error:
        said = str(error)
    parallel.sync_parameters()
    parallel.sync_parameters()  # once more changes nothing
    parallel.check_identical()
    return own, [p.detach() for p in model.parameters()], said


def trained_alone(make: Make, num_ranks: int, outer: OuterMomentum | None) -> tuple[list[nn.Module], nn.Module]:
    """The same in one process, with torch's own SGD as the outer optimizer: all ranks' models, and their average."""
    averaged = make()
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
            step(model, optimizer, rank, number)
        if (number + 1) % EVERY == 0:
            average()
            for model in models:
                model.load_state_dict(averaged.state_dict())
    average()
    return models, averaged


@pytest.mark.parametrize("make", [small_model, partial(seeded, Tied)])
@pytest.mark.parametrize(("name", "outer"), [("local_sgd/3", None), ("diloco/3", OuterMomentum())])
def test_it_is_what_one_process_computes(ranks: RankPool, name: str, outer: OuterMomentum | None, make: Make) -> None:
    """Ranks hold other parameters between averages, which a comparison says, and the same after the last."""
    models, averaged = trained_alone(make, 3, outer)
    for rank, (own, last, said) in enumerate(ranks.run(trained, name, make, num_ranks=3)):
        torch.testing.assert_close(own, [p.detach() for p in models[rank].parameters()], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(last, [p.detach() for p in averaged.parameters()], rtol=1e-4, atol=1e-5)
        assert "differs between rank 0 and ranks 1, 2" in said


def with_sgd(group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    """The parameters after some steps of plain SGD."""
    model = small_model()
    parallel = DataParallel(model, name, group)
    optimizer = parallel.optimizer(partial(torch.optim.SGD, lr=0.1))
    for number in range(STEPS):
        step(parallel, optimizer, group.rank(), number)
    return [p.detach() for p in model.parameters()]


def test_an_average_after_every_step_of_sgd_is_that_of_gradients(ranks: RankPool) -> None:
    """A step is linear in the gradient."""
    for name in ("local_sgd/1", "ring"):
        results = ranks.run(with_sgd, name, num_ranks=2)
        if name == "local_sgd/1":
            averaged = results[0]
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    torch.testing.assert_close(averaged, results[0], rtol=1e-4, atol=1e-5)


def with_own_optimizer(group: dist.ProcessGroup) -> str:
    """What is raised by a backward pass if nobody has asked for an optimizer."""
    parallel = DataParallel(small_model(), "local_sgd", group)
    try:
        parallel(inputs(0)).sum().backward()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_another_optimizer_is_an_error(ranks: RankPool) -> None:
    """On every rank and in one line: nothing would ever be averaged."""
    for error in ranks.run(with_own_optimizer, num_ranks=2):
        assert error.startswith("LocalStepError: no optimizer has been made by model.optimizer(...): ")
        assert "\n" not in error
