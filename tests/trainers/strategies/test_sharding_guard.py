"""What would train the ranks of a sharded strategy apart, or otherwise than asked, is an error on every rank."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.trainers.models import inputs, small_model
from trainers.data_parallel import DataParallel

SGD = partial(torch.optim.SGD, lr=0.1)
BUCKETS = "zero2/0.00002"  # every parameter or two are a bucket
Use = Callable[[DataParallel, torch.optim.Optimizer, int], object]


def backward(parallel: DataParallel, step: int) -> torch.Tensor:
    """Of this rank's own data."""
    loss: torch.Tensor = parallel(inputs(parallel.group.rank() + 7 * step)).pow(2).mean()
    loss.backward()
    return loss


def own_optimizer(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """Made of all parameters, as with other strategies."""
    backward(parallel, step)
    SGD(parallel.parameters()).step()


def own_optimizer_of_one(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Of the last layer only, beside the right one."""
    backward(parallel, step)
    SGD(list(parallel.parameters())[-1:]).step()
    optimizer.step()


def by_hand(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """Without any optimizer, past autograd's counters."""
    parallel.zero_grad()
    backward(parallel, step)
    for parameter in parallel.parameters():
        assert parameter.grad is not None
        parameter.data -= 0.1 * parameter.grad


def own_clipping(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Torch's function, which clips what this rank has found."""
    optimizer.zero_grad()
    backward(parallel, step)
    nn.utils.clip_grad_norm_(parallel.parameters(), 1e-3)
    optimizer.step()


def own_clipping_by_value(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Of what is no longer there."""
    optimizer.zero_grad()
    backward(parallel, step)
    nn.utils.clip_grad_value_(parallel.parameters(), 1e-3)
    optimizer.step()


def own_scaling(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Of all gradients that there are."""
    optimizer.zero_grad()
    backward(parallel, step)
    for parameter in parallel.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)
    optimizer.step()


def never_synchronised(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """The last backward pass communicates nothing, either."""
    optimizer.zero_grad()
    with parallel.no_sync():
        backward(parallel, step)
    optimizer.step()


def moved(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Into memory that is not gathered into."""
    parallel.double().float()
    optimizer.zero_grad()
    backward(parallel, step)
    optimizer.step()


def with_one_more_group(_: DataParallel, optimizer: torch.optim.Optimizer, __: int) -> None:
    """Which nobody would step."""
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def plain_zero_grad(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Of the plain model, which does not know of the shares' gradients."""
    parallel.module.zero_grad()
    backward(parallel, step)
    optimizer.step()


def forgotten_by_hand(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """After a backward pass without a step."""
    backward(parallel, step)
    if step < 1:
        optimizer.step()
        optimizer.zero_grad()
    for parameter in parallel.parameters():
        parameter.grad = None


def drifting(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """Changes parameters by hand, each rank its own way, and never steps."""
    backward(parallel, step)
    for parameter in parallel.parameters():
        parameter.data += parallel.group.rank()


def used(group: dist.ProcessGroup, name: str, use: Use) -> str:
    """What is raised in four steps with that strategy."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(SGD)
    try:
        for step in range(4):
            use(parallel, optimizer, step)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    ("name", "use", "message"),
    [
        ("zero1", own_optimizer, "ShardingError: SGD was made of the model's own parameters: "),
        ("zero1", own_optimizer_of_one, "ShardingError: SGD was made of the model's own parameters: "),
        ("zero1", by_hand, "ShardingError: parameter 0.weight differs between rank 0 and rank 1, by up to "),
        ("zero1", own_clipping, "ShardingError: gradients were changed after they were synchronised"),
        ("zero1", never_synchronised, "ShardingError: there are gradients that have not been synchronised"),
        ("zero1", moved, "ShardingError: the model's parameters have been moved"),
        ("zero1", with_one_more_group, "ValueError: zero1 steps all parameters of the model already"),
        (BUCKETS, own_optimizer, "ShardingError: SGD was made of the model's own parameters: with zero2 "),
        (BUCKETS, own_clipping, "ShardingError: zero2 and zero3 leave no gradient at the model's parameters"),
        ("zero3", own_clipping, "ShardingError: zero2 and zero3 leave no gradient at the model's parameters"),
        (BUCKETS, own_clipping_by_value, "ShardingError: zero2 and zero3 leave no gradient at the model's parameters"),
        ("zero3", own_scaling, "ShardingError: zero2 and zero3 leave no gradient at the model's parameters"),
        (BUCKETS, by_hand, "ShardingError: zero2 and zero3 leave no gradient at the model's parameters"),
        ("zero3", by_hand, "ShardingError: 0.weight is empty: with zero3 a parameter is there only while its layer"),
        (BUCKETS, never_synchronised, "ShardingError: there are gradients that have not been synchronised"),
        (BUCKETS, drifting, "ShardingError: parameter 0.weight differs between rank 0 and rank 1, by up to "),
        (BUCKETS, forgotten_by_hand, "ShardingError: somebody else has set the gradients of parameters to None"),
        ("zero3", forgotten_by_hand, "ShardingError: somebody else has set the gradients of parameters to None"),
        (BUCKETS, plain_zero_grad, "ShardingError: the gradients of the last step are still there"),
    ],
)
def test_misuse_is_an_error_on_every_rank(ranks: RankPool, name: str, use: Use, message: str) -> None:
    """In one line, and with what to do."""
    for error in ranks.run(used, name, use, num_ranks=2):
        assert error.startswith(message)
        assert "\n" not in error


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


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    """As is usual: no decay for biases."""
    held = list(parameters)
    groups = [{"params": [p for p in held if p.dim() > 1]}, {"params": [p for p in held if p.dim() < 2]}]
    return torch.optim.AdamW([groups[0], {**groups[1], "weight_decay": 0.0}], lr=0.1)


def but_one(parameters: Any) -> torch.optim.Optimizer:
    """Leaves one out."""
    return SGD(list(parameters)[1:] or parameters)


def made(group: dist.ProcessGroup, make: Callable[[Any], torch.optim.Optimizer] | None) -> str:
    """What is raised when it is made; None: of one that does not use what it is given."""
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
        (None, "SGD: was not made of the parameters that were given, but of others: with zero1 a rank steps its share"),
        (Lars, "Lars: what it does with an element depends on others"),
        (partial(Clipping, lr=0.1), "Clipping: what it does with an element depends on others"),
        (torch.optim.LBFGS, "LBFGS: what it does with an element depends on others"),
        (torch.optim.Adafactor, "Adafactor: what it does with an element depends on others"),
        (
            DecayingMatrices,
            "DecayingMatrices: what it does with an element depends on the parameter's shape, such as (2, 4)",
        ),
        (two_groups, "AdamW: group 1 of the parameters has another weight_decay than group 0"),
        (but_one, "SGD: has 5 parameters, the model 6 that require a gradient"),
    ],
)
def test_an_optimizer_that_cannot_step_shares_is_refused(ranks: RankPool, make: Any, message: str) -> None:
    """When it is made, in one line."""
    for error in ranks.run(made, make, num_ranks=2):
        assert error.startswith(message)
        assert "\n" not in error


@pytest.mark.parametrize(
    "name",
    ["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"],
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
        found.append([p.detach().clone() for p in parallel.parameters()])
    return found


def test_what_is_allowed_stays_so(ranks: RankPool) -> None:
    """Several synchronised passes to a step, whose gradients add up; a closure is called once."""
    (first, by_closure), (second, _) = ranks.run(accumulated, num_ranks=2)
    torch.testing.assert_close(first, by_closure, rtol=0, atol=0)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
