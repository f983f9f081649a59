"""Whatever would train the ranks apart, or otherwise than asked, is an error on every rank.

Most of it concerns sharded strategies, with which a rank has the mean gradients of its share only.
"""

import copy
from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.refusals import said_by
from tests.trainers.models import BUCKETS, SGD, Tied, backward, inputs, seeded, small_model
from trainers.data_parallel import DataParallel

Use = Callable[[DataParallel, torch.optim.Optimizer], object]


def own_optimizer(parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """Made of all parameters, as with other strategies."""
    parallel.unshard()
    SGD(parallel.parameters()).step()


def made_before(parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """An optimizer of a model that is wrapped only then."""
    model = small_model()
    early = SGD(model.parameters())
    DataParallel(model, parallel.strategy.name, parallel.group)  # type: ignore[arg-type]
    early.step()


def by_hand(parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """Without any optimizer, past autograd's counters."""
    for parameter in parallel.parameters():
        assert parameter.grad is not None
        parameter.data -= 0.1 * parameter.grad


def own_clipping(parallel: DataParallel, _: torch.optim.Optimizer) -> None:
    """By torch's function, of what has left the parameters; those of fsdp are whole, and the optimizer has rows."""
    parallel.unshard()
    nn.utils.clip_grad_norm_(parallel.parameters(), 1e-3)


def never_synchronised(parallel: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """The last backward pass communicates nothing, either."""
    optimizer.zero_grad()
    with parallel.no_sync():
        backward(parallel, 0)
    optimizer.step()


def moved(parallel: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Into memory that is not gathered into."""
    parallel.double().float()
    backward(parallel, 0)
    optimizer.step()


def forgotten_by_hand(parallel: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Of one parameter, so that the step leave it as it is."""
    next(parallel.parameters()).grad = None
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


FOREIGN = "ShardingError: SGD was constructed from the model's own parameters: with"
REDUCED = "ShardingError: zero1, zero2 and zero3 leave no gradient in the model's parameters"
UNSYNCHRONISED = "ShardingError: there are gradients that have not been synchronised"
EMPTY = "is empty: with zero3 a parameter is there only while its layer is called"
MOVED = "ShardingError: the model's parameters have been moved, or have another dtype, since they were sharded"
FSDP_UNSYNCHRONISED = "ShardingError: fsdp: some gradients have not been synchronised"
TWICE = "ValueError: local_sgd: model.optimizer(...) has already made an optimizer, and supports only one"

# After a backward pass: what is done, and by strategy the beginning of the error.
MISUSES: list[tuple[Use, dict[str, str]]] = [
    (own_optimizer, {name: f"{FOREIGN} {name} " for name in ("zero1", "zero2", "zero3", "fsdp", "diloco")}),
    (made_before, {"zero1": f"{FOREIGN} zero1 ", "fsdp": f"{FOREIGN} fsdp "}),
    (by_hand, {"zero1": REDUCED, BUCKETS: REDUCED}),
    (own_clipping, {"zero1": REDUCED, "zero3": REDUCED, "fsdp": REDUCED}),
    (never_synchronised, {"zero1": UNSYNCHRONISED, "zero3": UNSYNCHRONISED, "fsdp": FSDP_UNSYNCHRONISED}),
    (moved, {"zero1": MOVED}),
    (forgotten_by_hand, {BUCKETS: "ShardingError: the gradients of some parameters were set to None"}),
    (
        from_before_a_step,
        {
            BUCKETS: "RuntimeError: one of the variables needed for gradient computation has been",
            "zero3": "ShardingError: a backward pass belongs to a forward pass from before the last",
        },
    ),
    (retried, {"fsdp": FSDP_UNSYNCHRONISED}),
    (assigned, {"fsdp": MOVED}),
    (lambda parallel, _: (parallel.unshard(), assigned(parallel, _)), {"fsdp": MOVED}),
    (hooked, {"fsdp": "ShardingError: fsdp does not call the hooks of Tensor.register_hook on parameters: use regis"}),
    (written_early, {"fsdp": "ShardingError: fsdp: values that were written to parameters after unshard() are lost"}),
    (lambda parallel, _: parallel.double(), {"zero3": "RuntimeError: 0.weight has become torch.float64 since the mo"}),
    (lambda parallel, _: nn.init.ones_(parallel.model[2].bias), {"zero3": f"ShardingError: 2.bias {EMPTY}"}),  # type: ignore[index, arg-type]
    (lambda parallel, _: copy.deepcopy(parallel.module), {"zero3": f"ShardingError: 0.weight {EMPTY}"}),
    (borrowed, {"zero3": f"ShardingError: 0.weight {EMPTY}"}),
    (
        lambda parallel, _: parallel.compile(),
        {
            "zero3": "ValueError: zero3: its passes cannot be compiled; use zero1 or zero2",
            "fsdp": "ValueError: fsdp: its passes cannot be compiled; use ddp or zero2",
        },
    ),
    (
        partial(wrapped, Tied),
        {"fsdp": "ValueError: fsdp: a layer has parameters of torch.float32, torch.float64, and torch's"},
    ),
    (partial(wrapped, OfRank), {"zero3": "ShardingError: the ranks have used different layers, or the same layers in"}),
    (lambda parallel, _: parallel.optimizer(lambda some: SGD(list(some)[3:])), {"local_sgd": TWICE}),
]


def used(group: dist.ProcessGroup, name: str) -> dict[int, str]:
    """Return the errors of all misuses of a strategy, which happen before or in the next step."""
    errors = {}
    for number, (use, messages) in enumerate(MISUSES):
        if name in messages:
            parallel = DataParallel(small_model(), name, group)
            optimizer = parallel.optimizer(SGD)
            backward(parallel, 0)
            errors[number] = ""
            try:
                use(parallel, optimizer)
                backward(parallel, 1)
                optimizer.step()
            except (RuntimeError, ValueError) as error:
                errors[number] = f"{type(error).__name__}: {error}"
    return errors


@pytest.fixture(scope="module")
def errors_of(ranks: RankPool) -> Callable[[str], list[dict[int, str]]]:
    """Return the errors with a strategy on each rank, which runs once."""
    return cache(partial(ranks.run, used, num_ranks=2))


@pytest.mark.parametrize(
    ("number", "name"), [(number, name) for number, (_, messages) in enumerate(MISUSES) for name in messages]
)
def test_misuse_is_an_error_on_every_rank(
    errors_of: Callable[[str], list[dict[int, str]]], number: int, name: str
) -> None:
    """In one line, and with what to do."""
    for errors in errors_of(name):
        assert errors[number].startswith(MISUSES[number][1][name])
        assert "\n" not in errors[number] or errors[number].startswith("RuntimeError: one of")  # torch's
