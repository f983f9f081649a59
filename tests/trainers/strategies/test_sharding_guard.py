"""An optimizer that cannot step shares of the parameters is refused when it is made; others are taken."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.trainers.models import SGD, backward, parameters_of, small_model, two_groups
from trainers.data_parallel import DataParallel


class Lars(torch.optim.Optimizer):
    """A step as long as the parameter's norm."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for parameter in (p for group in self.param_groups for p in group["params"]):
            if parameter.grad is not None:
                parameter.sub_(0.01 * parameter.norm() / parameter.grad.norm() * parameter.grad)


class Clipping(torch.optim.SGD):
    """Clips all gradients together, by itself."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        super().step(closure)


class DecayingMatrices(torch.optim.SGD):
    """Weight decay of what has two dimensions and more, as is usual: element by element."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (p for group in self.param_groups for p in group["params"]):
            parameter.mul_(0.9 if parameter.dim() > 1 else 1.0)
        super().step(closure)


def but_one(parameters: Any) -> torch.optim.Optimizer:
    """Leaves one out."""
    return SGD(list(parameters)[1:] or parameters)


def made(group: dist.ProcessGroup, make: Callable[[Any], torch.optim.Optimizer] | None) -> str:
    """Return the error when it is made; None: an optimizer that does not use the given parameters."""
    model = small_model()
    before = torch.get_rng_state()
    try:
        DataParallel(model, "zero1", group).optimizer(make or (lambda _: SGD(model.parameters())))
    except ValueError as error:
        return str(error)
    assert torch.equal(torch.get_rng_state(), before)
    return ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (None, "SGD: was not constructed from the parameters that the function was passed: with zero1 these are"),
        (Lars, "Lars: its update of an element depends on others"),
        (partial(Clipping, lr=0.1), "Clipping: its update of an element depends on others"),
        (torch.optim.LBFGS, "LBFGS: its update of an element depends on others"),
        (torch.optim.Adafactor, "Adafactor: its update of an element depends on others"),
        (
            DecayingMatrices,
            "DecayingMatrices: its update of an element depends on the parameter's shape, such as (2, 4)",
        ),
        (two_groups, "AdamW: parameter group 1 differs from group 0 in weight_decay"),
        (but_one, "SGD: has 5 parameters, but 6 of the model require a gradient"),
    ],
)
def test_an_optimizer_that_cannot_step_shares_is_refused(ranks: RankPool, make: Any, message: str) -> None:
    """When it is made, in one line."""
    for error in ranks.run(made, make, num_ranks=2):
        assert error.startswith(message)
        assert "\n" not in error


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
)
def test_all_that_work_element_by_element_are_taken(ranks: RankPool, name: str) -> None:
    """Of torch's own; and no random number is drawn for finding out."""
    assert ranks.run(made, getattr(torch.optim, name), num_ranks=2) == ["", ""]


def accumulated(group: dist.ProcessGroup) -> list[list[torch.Tensor]]:
    """The parameters after steps of three synchronised backward passes, by a closure or not, and with clipping."""
    found = []
    for by_closure in (False, True):
        parallel = DataParallel(small_model(), "zero1", group)
        optimizer = parallel.optimizer(partial(SGD, momentum=0.9))
        for step in range(3):

            def closure(parallel: DataParallel = parallel, step: int = step) -> torch.Tensor:
                parallel.zero_grad()
                return sum(backward(parallel, step + 9 * part) for part in range(3))  # type: ignore[return-value]

            if by_closure:
                optimizer.step(closure)  # type: ignore[arg-type]
            else:
                closure()
                optimizer.step()
        found.append(parameters_of(parallel))
    return found


def test_what_is_allowed_stays_so(ranks: RankPool) -> None:
    """Several synchronised passes to a step, whose gradients add up; a closure is called once."""
    (first, by_closure), (second, _) = ranks.run(accumulated, num_ranks=2)
    torch.testing.assert_close(first, by_closure, rtol=0, atol=0)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
