"""Programs train with shares of parameters, gradients and states as they do with `ring`."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.ranks import RankPool
from tests.refusals import said_by
from tests.trainers.models import BUCKETS, MODELS, backward, inputs, parameters_of, seeded, small_model
from tests.trainers.strategies.odd_layers import ODD_MODELS
from trainers.data_parallel import DataParallel

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ALL_MODELS = {**MODELS, **ODD_MODELS}
Results = list[torch.Tensor]
Program = Callable[[dist.ProcessGroup, str], Results]
OutcomesOf = Callable[[str], list[dict[str, Results]]]


def whole(parallel: DataParallel) -> Results:
    """The parameters, put together from all ranks."""
    parallel.unshard()
    return parameters_of(parallel)


def stepped(model: str, does: Callable[..., None], group: dist.ProcessGroup, name: str) -> Results:
    """Two steps in which a program does something before the last backward pass, which in the first is a closure's.

    No whole parameter stays after a step.
    """
    plain = ALL_MODELS[model]()
    if does is not accumulating:
        plain.unused = nn.Parameter(torch.ones(3))  # which belongs to no layer and no other module
    parallel = DataParallel(plain, name, group)
    optimizer = parallel.optimizer(SGD)
    for step in range(2):
        (optimizer if step else parallel).zero_grad()
        does(parallel, optimizer, step)
        if step == 0:
            optimizer.step(partial(backward, parallel, step))
        else:
            backward(parallel, step)
            optimizer.step()
        kinds = {type(p) for p in parallel.parameters() if p.requires_grad}
        assert not name.startswith(("zero3", "fsdp")) or nn.Parameter not in kinds
        parallel.check_identical()
    return whole(parallel)


def accumulating(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """Two backward passes, of which the second is not synchronised, and in one step an evaluation."""
    backward(parallel, step + 10)
    with parallel.no_sync():
        backward(parallel, step + 20)
    if step == 0:
        with torch.no_grad():
            parallel(inputs(0))


def penalised(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """A gradient of gradients, and other passes before its backward pass."""
    x = inputs(parallel.group.rank() + step).requires_grad_()
    out = parallel(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(parallel(x).sum(), x)
    torch.testing.assert_close(slope, again)
    (slope.pow(2).sum() + out.pow(2).mean()).backward()


def regularised(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """A loss of the parameters themselves, made before or after the forward pass."""
    parallel.unshard()
    early = sum(p.pow(2).sum() for p in parallel.parameters()) if step else 0
    loss = parallel(inputs(parallel.group.rank() + step)).pow(2).mean()
    parallel.unshard()
    (loss + (early if step else sum(p.pow(2).sum() for p in parallel.parameters()))).backward()


def recomputing(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """The wrapped model, whose end does not count, is computed anew."""
    checkpoint(parallel, inputs(step), use_reentrant=False).pow(2).mean().backward()  # type: ignore[no-untyped-call]


def failing(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A backward pass, then a forward pass, that fail in the middle; their gradients are forgotten."""
    inner = parallel.module.blocks[1]  # type: ignore[index, union-attr]
    late = inner.register_forward_hook(lambda _, __, out: (out.register_hook(lambda _: 1 / 0), out)[1])
    said_by(ZeroDivisionError, backward, parallel, step + 20)
    late.remove()
    early = inner.register_forward_pre_hook(lambda *_: 1 / 0)
    said_by(ZeroDivisionError, backward, parallel, step + 20)
    early.remove()
    optimizer.zero_grad()


def dropping(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Gradients of this rank alone, which are forgotten in each of three ways."""
    for holder in (optimizer, parallel, parallel.module):
        with parallel.no_sync():
            backward(parallel, step + 20)
        holder.zero_grad()


def forgetting(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Gradients of all ranks, which are set to None where the model has its parameters; others stay for a step."""
    backward(parallel, step + 20)
    if step == 0:
        optimizer.step()
    else:
        parallel.module.zero_grad()


def holding(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """Gradients that all ranks have and that this rank alone has, and all parameters are looked at before more."""
    backward(parallel, step + 20)
    with parallel.no_sync():
        backward(parallel, step + 30)
    parallel.unshard()


def overlapping(parallel: DataParallel, _: torch.optim.Optimizer, step: int) -> None:
    """Three forward passes, the last of them alone, and all parameters are looked at between backward passes."""
    losses = [parallel(inputs(parallel.group.rank() + 10 * step + number)).pow(2).mean() for number in range(3)]
    losses[0].backward()
    parallel.unshard()
    losses[1].backward()


def writing(parallel: DataParallel, _: torch.optim.Optimizer, __: int) -> None:
    """A quarter of every parameter, one half where autograd does not see it, and a state in between that has it."""
    parallel.unshard()
    with torch.no_grad():
        for parameter in parallel.parameters():
            parameter.mul_(0.5)
    plain, state = parallel.module.state_dict(), parallel.state_dict()
    assert len(plain) == len(state)
    parallel.load_state_dict({name: value / 0.75 for name, value in state.items()})
    parallel.unshard()
    for parameter in parallel.parameters():
        parameter.data.mul_(0.5)
    parallel.unshard()


def averaged(group: dist.ProcessGroup, name: str) -> Results:
    """The parameters of a copy of the plain model, made by the first update of an average, after which steps follow."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(SGD)
    average = torch.optim.swa_utils.AveragedModel(parallel.module)
    for step in range(2):
        backward(parallel, step)
        optimizer.step()
        parallel.unshard()
        if step == 0:
            average.update_parameters(parallel.module)
    average(inputs(0)).sum().backward()
    return parameters_of(average)


def optimized(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Of all groups, as frameworks collect them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def clipped(group: dist.ProcessGroup, name: str) -> Results:
    """Steps with gradients that torch's functions clip by value and norm, and what the norms were."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(SGD)
    norms = []
    for step in range(3):
        optimizer.zero_grad()
        backward(parallel, step)
        nn.utils.clip_grad_value_(optimized(optimizer), 0.5)
        norms.append(nn.utils.clip_grad_norm_(optimized(optimizer), 0.3))
        optimizer.step()
    return [*norms, *whole(parallel)]


class Unbounded(nn.Module):
    """A layer, and a vector whose first element has an infinite gradient if the data say so."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3))
        self.vector = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor, largest: float) -> Any:
        """x: (batch, 3)."""
        return self.layers(x).pow(2).mean() + self.vector[0] * largest + self.vector[1:].sum()


INFINITE = {0: 1, 3: 0, 4: 1}  # in which step which rank has an infinite gradient


def scaled(group: dist.ProcessGroup, name: str) -> Results:
    """Steps with torch's GradScaler, which every other time unscales and clips; all ranks must leave out some."""
    parallel = DataParallel(seeded(Unbounded), name, group)
    optimizer = parallel.optimizer(partial(torch.optim.AdamW, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    scales = []
    for step in range(6):
        optimizer.zero_grad()
        largest = math.inf if INFINITE.get(step) == group.rank() else 1.0
        scaler.scale(parallel(inputs(group.rank() + 7 * step), largest)).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(optimized(optimizer), 0.3)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [32, 32, 64, 32, 16, 16]
    return whole(parallel)


FSDP_MODELS = ("sequential", "blocks", "recomputed", "shared", "boxed")
LOOPS = (failing, dropping, forgetting, holding, overlapping, writing)
EVERYWHERE: dict[str, Program] = {
    **{f"model {model}": partial(stepped, model, accumulating) for model in FSDP_MODELS},
    **{does.__name__: partial(stepped, "blocks", does) for does in LOOPS},
    "scaler": scaled,
}
PROGRAMS: dict[str, Program] = EVERYWHERE | {
    **{f"model {model}": partial(stepped, model, accumulating) for model in ALL_MODELS if model != "branching"},
    **{does.__name__: partial(stepped, "sequential", does) for does in (penalised, regularised)},
    "recomputing": partial(stepped, "leaving", recomputing),
    "average": averaged,
    "clipping": clipped,
}
STRATEGIES = {"zero1": PROGRAMS, BUCKETS: PROGRAMS, "zero3": PROGRAMS, "fsdp": EVERYWHERE}
STRATEGIES["fsdp_backend_ring"] = {name: EVERYWHERE[name] for name in ("model blocks", "holding")}


def outcomes(group: dist.ProcessGroup, strategy: str) -> dict[str, Results]:
    """What becomes of all programs with a strategy."""
    return {name: program(group, strategy) for name, program in STRATEGIES.get(strategy, PROGRAMS).items()}


@pytest.fixture(scope="module")
def outcomes_of(ranks: RankPool) -> OutcomesOf:
    """Return the outcomes of a strategy on each rank, which runs once."""
    return cache(partial(ranks.run, outcomes, num_ranks=2))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's older functions that normalise weights
@pytest.mark.parametrize(("strategy", "program"), [(name, each) for name in STRATEGIES for each in STRATEGIES[name]])
def test_a_program_trains_as_with_the_ring(outcomes_of: OutcomesOf, strategy: str, program: str) -> None:
    """The ranks alike, bit for bit."""
    (first, second), (expected, _) = outcomes_of(strategy), outcomes_of("ring")
    torch.testing.assert_close(first[program], second[program], rtol=0, atol=0)
    torch.testing.assert_close(first[program], expected[program])
