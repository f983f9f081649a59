"""Whatever would train the ranks apart, or otherwise than asked, is an error on every rank.

Most of it concerns sharded strategies, with which a rank has the mean gradients of its share only. An optimizer that
cannot step shares of the parameters is refused when it is made; others are taken.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion
from torch import nn

from tests.ranks import RankPool
from tests.refusals import said_by
from tests.trainers.models import BUCKETS, SGD, Tied, backward, inputs, seeded, small_model, two_groups
from trainers.data_parallel import DataParallel

Use = Callable[[DataParallel, torch.optim.Optimizer], object]


def made_before(parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """An optimizer of a model that is wrapped only then."""
    model = small_model()
    early = SGD(model.parameters())
    DataParallel(model, parallel.strategy.name, parallel.group)  # type: ignore[arg-type]
    early.step()


def by_hand(parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """Without any optimizer, past autograd's counters."""
    for parameter in parallel.parameters():
        parameter.data -= 0.1 * parameter.grad


def never_synchronised(parallel: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """The last backward pass communicates nothing, either."""
    optimizer.zero_grad()
    with parallel.no_sync():
        backward(parallel, 0)
    optimizer.step()


def added(_: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """A group of parameters that the strategy does not know."""
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    optimizer.step()


def from_before_a_step(parallel: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """A backward pass through a forward pass with other parameters."""
    loss = parallel(inputs(0)).sum()
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()


def assigned(parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """Other tensors in place of the parameters' values: of this rank's rows, or of whole ones."""
    for parameter in parallel.parameters():
        parameter.data = parameter.data * 2
    parallel(inputs(0))


def hooked(parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """A hook that would double a gradient."""
    loss = parallel(inputs(0)).sum()
    next(parallel.parameters()).register_hook(lambda gradient: gradient * 2)
    loss.backward()


def retried(parallel: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """A second backward pass through what has failed, and a step."""
    out = parallel(inputs(0))
    hook = out.register_hook(lambda _: 1 / 0)
    said_by(ZeroDivisionError, out.sum().backward, retain_graph=True)
    hook.remove()
    out.sum().backward()
    optimizer.step()


def written_early(parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """Whole parameters that are written to while a backward pass is still to come, which lets go of them."""
    loss = parallel(inputs(0)).sum()
    parallel.unshard()
    nn.init.zeros_(parallel.module[0].weight)  # type: ignore[index, arg-type]
    loss.backward()
    parallel(inputs(0))


def borrowed(parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """Another layer's weight."""
    parallel.model[1].register_forward_hook(lambda *_: parallel.model[0].weight.sum())  # type: ignore[index]
    parallel(inputs(0))


class OfRank(nn.Module):
    """Layers that are alike, of which every rank leaves out another one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 3)."""
        for number, layer in enumerate(self.layers):
            if number != dist.get_rank():
                x = layer(x)
        return x


def wrapped(model: type[nn.Module], parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """A backward pass of another model."""
    backward(DataParallel(seeded(model), parallel.strategy.name, parallel.group), 0)  # type: ignore[arg-type]


# After a backward pass: what is done, and with which strategies.
MISUSES: list[tuple[Use, tuple[str, ...]]] = [
    (
        lambda parallel, _: (parallel.unshard(), SGD(parallel.parameters()).step()),
        ("zero1", "zero2", "zero3", "fsdp", "diloco"),
    ),
    (made_before, ("zero1", "fsdp")),
    (by_hand, ("zero1", BUCKETS)),
    # By torch's function, of what has left the parameters; those of fsdp are whole, and the optimizer has rows.
    (
        lambda parallel, _: (parallel.unshard(), nn.utils.clip_grad_norm_(parallel.parameters(), 1e-3)),
        ("zero1", "zero3", "fsdp"),
    ),
    (never_synchronised, ("zero1", "zero3", "fsdp")),
    (added, ("zero1", "zero3")),
    (lambda parallel, _: parallel.double().float(), ("zero1",)),
    (lambda parallel, optimizer: (setattr(next(parallel.parameters()), "grad", None), optimizer.step()), (BUCKETS,)),
    (from_before_a_step, (BUCKETS, "zero3")),
    (retried, ("fsdp",)),
    (assigned, ("fsdp",)),
    (lambda parallel, _: (parallel.unshard(), assigned(parallel, _)), ("fsdp",)),
    (hooked, ("fsdp",)),
    (written_early, ("fsdp",)),
    (lambda parallel, _: parallel.double(), ("zero3",)),
    (lambda parallel, _: nn.init.ones_(parallel.model[2].bias), ("zero3",)),  # type: ignore[index, arg-type]
    (lambda parallel, _: copy.deepcopy(parallel.module), ("zero3",)),
    (borrowed, ("zero3",)),
    (lambda parallel, _: parallel.compile(), ("zero3", "fsdp")),
    (partial(wrapped, Tied), ("fsdp",)),
    (partial(wrapped, OfRank), ("zero3",)),
    (lambda parallel, _: parallel.optimizer(lambda some: SGD(list(some)[3:])), ("local_sgd",)),
]


def misuse(group: dist.ProcessGroup, name: str) -> list[str]:
    """Misuse a strategy in all ways, each of which is an error then or in the next step; and return these."""
    said = []
    for use in [use for use, names in MISUSES if name in names]:
        parallel = DataParallel(small_model(), name, group)
        optimizer = parallel.optimizer(SGD)
        backward(parallel, 0)
        with pytest.raises((RuntimeError, ValueError)) as caught:  # noqa: PT012
            use(parallel, optimizer)
            optimizer.zero_grad()
            backward(parallel, 1)
            optimizer.step()
        said.append(f"{type(caught.value).__name__}: {caught.value}".partition(" by an inplace")[0])  # torch's
    return said


@pytest.mark.parametrize("name", sorted({name for _, names in MISUSES for name in names}))
def test_misuse_is_an_error_on_every_rank(ranks: RankPool, name: str, snapshot: SnapshotAssertion) -> None:
    """In one line with what to do."""
    first, second = ranks.run(misuse, name, num_ranks=2)
    assert not any("\n" in message for message in first)
    assert first == second == snapshot


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


TAKEN = ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
# Given the model's own parameters, and those that are passed; the first ones are refused.
OPTIMIZERS: list[Callable[[list[Any], list[Any]], torch.optim.Optimizer]] = [
    lambda own, _: SGD(own),
    lambda _, passed: SGD(passed[1:] or passed),
    lambda _, passed: two_groups(passed),
    lambda _, passed: Clipping(passed, lr=0.1),
    lambda _, passed: DecayingMatrices(passed, lr=0.1),
    lambda _, passed: torch.optim.LBFGS(passed),
    lambda _, passed: torch.optim.Adafactor(passed),
    *(partial(lambda name, _, passed: getattr(torch.optim, name)(passed), name) for name in TAKEN),
]


def make_all(group: dist.ProcessGroup) -> list[str]:
    """Make all optimizers; no random number is drawn for finding out whether they can step shares."""
    said = []
    for make in OPTIMIZERS:
        model, error = small_model(), ""
        before, own = torch.get_rng_state(), list(model.parameters())
        try:
            DataParallel(model, "zero1", group).optimizer(lambda passed: make(own, list(passed)))  # noqa: B023
        except ValueError as refusal:
            error = str(refusal)
        said.append(error)
        assert torch.equal(torch.get_rng_state(), before)
    return said


def test_an_optimizer_that_cannot_step_shares_is_refused(ranks: RankPool, snapshot: SnapshotAssertion) -> None:
    """When it is made, in one line; all of torch's that work element by element are taken."""
    (said,) = ranks.run(make_all, num_ranks=1)
    assert not any("\n" in message for message in said)
    assert [message for message in said if message] == said[: -len(TAKEN)] == snapshot
