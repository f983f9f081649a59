"""An optimizer that cannot step shares of the parameters is refused when it is made; others are taken."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.trainers.models import SGD, small_model, two_groups
from trainers.data_parallel import DataParallel


class Clipping(torch.optim.SGD):
    """Clips all gradients together, by itself."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        super().step(closure)


class DecayingMatrices(torch.optim.SGD):
    """Weight decay of what has two dimensions and more, as is usual: element by element."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (p for group in self.param_groups for p in group["params"]):
            parameter.mul_(0.9 if parameter.dim() > 1 else 1.0)
        super().step(closure)


OTHERS = "its update of an element depends on others"
EXACTLY = "SGD: must be made of exactly the parameters that the function is passed"
TAKEN = ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
# The beginning of the error; "" if there is none. Given the model's own parameters, and those that are passed.
OPTIMIZERS: list[tuple[Callable[[list[Any], list[Any]], torch.optim.Optimizer], str]] = [
    (lambda own, _: SGD(own), EXACTLY),
    (lambda _, passed: SGD(passed[1:] or passed), EXACTLY),
    (lambda _, passed: two_groups(passed), "AdamW: has parameter groups with different options"),
    (lambda _, passed: Clipping(passed, lr=0.1), f"Clipping: {OTHERS}"),
    (lambda _, passed: DecayingMatrices(passed, lr=0.1), f"DecayingMatrices: {OTHERS}"),
    (lambda _, passed: torch.optim.LBFGS(passed), f"LBFGS: {OTHERS}"),
    (lambda _, passed: torch.optim.Adafactor(passed), f"Adafactor: {OTHERS}"),
    *((partial(lambda name, _, passed: getattr(torch.optim, name)(passed), name), "") for name in TAKEN),
]


def made(group: dist.ProcessGroup) -> list[str]:
    """Return the errors of all optimizers when they are made; no random number is drawn for finding out."""
    errors = []
    for make, _ in OPTIMIZERS:
        model, error = small_model(), ""
        before = torch.get_rng_state()
        own = list(model.parameters())
        try:
            DataParallel(model, "zero1", group).optimizer(lambda passed: make(own, list(passed)))  # noqa: B023
        except ValueError as refusal:
            error = str(refusal)
        assert torch.equal(torch.get_rng_state(), before)
        errors.append(error)
    return errors


def test_an_optimizer_that_cannot_step_shares_is_refused(ranks: RankPool) -> None:
    """When it is made, in one line; all of torch's that work element by element are taken."""
    for error, (_, message) in zip(ranks.run(made, num_ranks=1)[0], OPTIMIZERS, strict=True):
        assert error.startswith(message)
        assert bool(error) == bool(message)
        assert "\n" not in error
