"""An optimizer that cannot step shares of the parameters is refused when it is made; others are taken."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.trainers.models import SGD, small_model, two_groups
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


OTHERS = "its update of an element depends on others"
EXACTLY = "SGD: must be made of exactly the parameters that the function is passed"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (None, EXACTLY),
        (but_one, EXACTLY),
        (two_groups, "AdamW: has parameter groups with different options"),
        (Lars, f"Lars: {OTHERS}"),
        (partial(Clipping, lr=0.1), f"Clipping: {OTHERS}"),
        (torch.optim.LBFGS, f"LBFGS: {OTHERS}"),
        (torch.optim.Adafactor, f"Adafactor: {OTHERS}"),
        (DecayingMatrices, f"DecayingMatrices: {OTHERS}"),
    ],
)
def test_an_optimizer_that_cannot_step_shares_is_refused(ranks: RankPool, make: Any, message: str) -> None:
    """When it is made, in one line."""
    for error in ranks.run(made, make, num_ranks=1):
        assert error.startswith(message)
        assert "\n" not in error


TAKEN = ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")


def all_made(group: dist.ProcessGroup) -> list[str]:
    """Return the errors of torch's optimizers that work element by element."""
    return [made(group, getattr(torch.optim, name)) for name in TAKEN]


def test_all_that_work_element_by_element_are_taken(ranks: RankPool) -> None:
    """Of torch's own; and no random number is drawn for finding out."""
    assert ranks.run(all_made, num_ranks=1) == [[""] * len(TAKEN)]
