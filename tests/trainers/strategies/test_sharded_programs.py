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
from tests.trainers.models import BUCKETS, MODELS, backward, inputs, parameters_of, seeded, small_model
from tests.trainers.strategies.odd_layers import ODD_MODELS
from trainers.data_parallel import DataParallel

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ALL_MODELS = {**MODELS, **ODD_MODELS}
Results = list[torch.Tensor]
Program = Callable[[dist.ProcessGroup, str], Results]


def optimized(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Of all groups, as frameworks collect them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def whole(parallel: DataParallel) -> Results:
    """The parameters, put together from all ranks."""
    parallel.check_identical()
    parallel.unshard()
    return parameters_of(parallel)


def trained(model: str, group: dist.ProcessGroup, name: str) -> Results:
    """Steps of two synchronised backward passes and one that only accumulates; in between no whole parameter stays."""
    parallel = DataParallel(ALL_MODELS[model](), name, group)
    optimizer = parallel.optimizer(SGD)
    for step in range(3):
        (optimizer if step % 2 else parallel).zero_grad()
        backward(parallel, step)
        with parallel.no_sync():
            backward(parallel, step + 10)
        backward(parallel, step + 20)
        parallel.clip_grad_norm_(2.0)
        optimizer.step()
        kinds = {type(p) for p in parallel.parameters() if p.requires_grad}
        assert not name.startswith(("zero3", "fsdp")) or nn.Parameter not in kinds
        if step == 1:
            with torch.no_grad():
                parallel(inputs(0))
        parallel.check_identical()
    return whole(parallel)


def gradients(model: str, group: dist.ProcessGroup, name: str) -> Results:
    """The mean gradients of one backward pass, where all have used the same."""
    parallel = DataParallel(MODELS[model](), name, group)
    optimizer = parallel.optimizer(partial(torch.optim.SGD, lr=1.0))
    before = parameters_of(parallel)
    parallel(inputs(group.rank()).abs()).pow(2).mean().backward()
    optimizer.step()
    return [old - new for old, new in zip(before, whole(parallel), strict=True)]


def penalised(group: dist.ProcessGroup, name: str) -> Results:
    """Steps with a gradient of gradients, and other passes before its backward pass."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(SGD)
    for step in range(3):
        optimizer.zero_grad()
        x = inputs(group.rank() + 7 * step).requires_grad_()
        out = parallel(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(parallel(x).sum(), x)
        torch.testing.assert_close(slope, again)
        (slope.pow(2).sum() + out.pow(2).mean()).backward()
        optimizer.step()
    return whole(parallel)


def regularised(group: dist.ProcessGroup, name: str) -> Results:
    """Steps with a loss of the parameters themselves, made before or after the forward pass."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(SGD)
    for step in range(4):
        optimizer.zero_grad()
        parallel.unshard()
        loss = sum(p.pow(2).sum() for p in parallel.parameters()) if step % 2 else 0
        loss = loss + parallel(inputs(group.rank() + 7 * step)).pow(2).mean()
        parallel.unshard()
        (loss if step % 2 else loss + sum(p.pow(2).sum() for p in parallel.parameters())).backward()
        optimizer.step()
    return whole(parallel)


def recomputed(group: dist.ProcessGroup, name: str) -> Results:
    """A step in which the wrapped model, whose end does not count, is computed anew."""
    parallel = DataParallel(ODD_MODELS["leaving"](), name, group)
    optimizer = parallel.optimizer(SGD)
    checkpoint(parallel, inputs(group.rank()), use_reentrant=False).pow(2).mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return whole(parallel)


def clipped(options: dict[str, Any], group: dist.ProcessGroup, name: str) -> Results:
    """Steps with gradients that torch's functions clip by value and norm, and what the norms were."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(SGD)
    norms = []
    for step in range(4):
        optimizer.zero_grad()
        backward(parallel, step)
        nn.utils.clip_grad_value_(optimized(optimizer), 0.5)
        norms.append(nn.utils.clip_grad_norm_(optimized(optimizer), 0.3, **options))
        optimizer.step()
    return [*norms, *whole(parallel)]


class Unbounded(nn.Module):
    """A layer, and a vector whose first element has an infinite gradient if the data say so."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3))
        self.vector = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor, largest: float) -> torch.Tensor:
        """x: (batch, 3)."""
        factors = torch.ones(6)
        factors[0] = largest
        result: torch.Tensor = self.layers(x).pow(2).mean() + (self.vector * factors).sum()
        return result


INFINITE = {1: 1, 4: 0, 5: 1}  # in which step which rank has an infinite gradient


def scaled(unscales: bool, group: dist.ProcessGroup, name: str) -> Results:
    """Steps with torch's GradScaler, some of which all ranks must leave out; and its scales."""
    parallel = DataParallel(seeded(Unbounded), name, group)
    optimizer = parallel.optimizer(partial(torch.optim.AdamW, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    scales = []
    for step in range(8):
        optimizer.zero_grad()
        largest = math.inf if INFINITE.get(step) == group.rank() else 1.0
        scaler.scale(parallel(inputs(group.rank() + 7 * step), largest)).backward()
        if unscales:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(optimized(optimizer), 0.3)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [64, 32, 32, 64, 32, 16, 16, 32]
    return whole(parallel)


def fail(*_: object) -> None:
    """Fail as a hook of the program."""
    raise ArithmeticError("of the program")


class Loop:
    """A model, its optimizer, and steps of a program that does more than one forward and one backward pass in each."""

    def __init__(self, group: dist.ProcessGroup, name: str) -> None:
        self.rank = group.rank()
        self.model = MODELS["blocks"]()
        self.model.unused = nn.Parameter(torch.ones(3))  # which belongs to no layer and no other module
        self.parallel = DataParallel(self.model, name, group)
        self.optimizer = self.parallel.optimizer(partial(torch.optim.SGD, lr=0.2, momentum=0.9))

    def loss(self, step: int) -> torch.Tensor:
        """Of this rank's data."""
        result: torch.Tensor = self.parallel(inputs(self.rank + 10 * step)).pow(2).mean()
        return result

    def failing(self, step: int) -> None:
        """A backward pass, then a forward pass, that fail in the middle; their gradients are forgotten."""
        inner = self.model.blocks[1]
        late = inner.register_forward_hook(lambda _, __, out: (out.register_hook(fail), out)[1])
        with pytest.raises(ArithmeticError):
            self.loss(step + 20).backward()
        late.remove()
        early = inner.register_forward_pre_hook(fail)
        with pytest.raises(ArithmeticError):
            self.loss(step + 20)
        early.remove()
        self.optimizer.zero_grad()

    def dropping(self, step: int) -> None:
        """Gradients of this rank alone, which are forgotten in each of three ways."""
        with self.parallel.no_sync():
            self.loss(step + 20).backward()
        (self.optimizer, self.parallel, self.model)[step].zero_grad()

    def forgetting(self, step: int) -> None:
        """Gradients of all ranks, which are set to None where the model has its parameters; others stay for a step."""
        self.loss(step + 20).backward()
        if step == 1:
            self.optimizer.step()
        else:
            self.model.zero_grad()

    def holding(self, step: int) -> None:
        """Gradients that all ranks have and that this rank alone has, and all parameters are looked at before more."""
        self.loss(step + 20).backward()
        with self.parallel.no_sync():
            self.loss(step + 30).backward()
        self.parallel.unshard()

    def overlapping(self, step: int) -> None:
        """Two forward passes, and all parameters are looked at between their backward passes."""
        losses = self.loss(step + 20), self.loss(step + 30)
        losses[0].backward()
        self.parallel.unshard()
        losses[1].backward()

    def straying(self, step: int) -> None:
        """A forward pass alone."""
        self.loss(step + 1)

    def writing(self, _: int) -> None:
        """Half of every parameter, and a state in between that has it."""
        self.parallel.unshard()
        with torch.no_grad():
            for parameter in self.parallel.parameters():
                parameter.mul_(0.5)
        plain, state = self.model.state_dict(), self.parallel.state_dict()
        assert len(plain) == len(state)
        self.parallel.load_state_dict({name: value / 0.75 for name, value in state.items()})

    def writing_data(self, _: int) -> None:
        """The same where autograd does not see it."""
        self.parallel.unshard()
        for parameter in self.parallel.parameters():
            parameter.data.mul_(0.5)
        self.parallel.unshard()

    def trained(self, does: str) -> Results:
        """The parameters after three steps; the second one's gradients are made by a closure."""
        for step in range(3):

            def closure(step: int = step) -> torch.Tensor:
                loss = self.loss(step)
                loss.backward()
                return loss

            getattr(self, does)(step)
            if step == 1:
                self.optimizer.step(closure)
            else:
                closure()
                self.optimizer.step()
            self.optimizer.zero_grad()
        return whole(self.parallel)


def looped(does: str, group: dist.ProcessGroup, name: str) -> Results:
    """The parameters that such a program ends with."""
    return Loop(group, name).trained(does)


LOOPS = ("failing", "dropping", "forgetting", "holding", "overlapping", "straying", "writing", "writing_data")
FSDP_MODELS = ("sequential", "blocks", "recomputed", "shared", "boxed")
EVERYWHERE: dict[str, Program] = {
    **{f"model {model}": partial(trained, model) for model in FSDP_MODELS},
    **{f"loop {does}": partial(looped, does) for does in LOOPS},
    "scaler": partial(scaled, False),
    "unscaling": partial(scaled, True),
}
PROGRAMS: dict[str, Program] = EVERYWHERE | {
    **{f"model {model}": partial(trained, model) for model in ALL_MODELS if model != "branching"},
    **{f"gradients {model}": partial(gradients, model) for model in MODELS},
    "penalty": penalised,
    "regularisation": regularised,
    "recomputation": recomputed,
    "clipping": partial(clipped, {}),
    "clipping by the largest": partial(clipped, {"norm_type": math.inf}),
    "clipping by the third power": partial(clipped, {"norm_type": 3, "foreach": True}),
}
STRATEGIES = {"zero1": PROGRAMS, BUCKETS: PROGRAMS, "zero3": PROGRAMS, "fsdp": EVERYWHERE}
STRATEGIES["fsdp_backend_ring"] = {name: EVERYWHERE[name] for name in ("model blocks", "loop holding")}


def outcomes(group: dist.ProcessGroup, strategy: str) -> dict[str, Results]:
    """What becomes of all programs with a strategy."""
    return {name: program(group, strategy) for name, program in STRATEGIES.get(strategy, PROGRAMS).items()}


@pytest.fixture(scope="module")
def outcomes_of(ranks: RankPool) -> Callable[[str], list[dict[str, Results]]]:
    """Return the outcomes of a strategy on each rank, which runs once."""
    return cache(partial(ranks.run, outcomes, num_ranks=2))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's older functions that normalise weights
@pytest.mark.parametrize(
    ("strategy", "program"), [(name, program) for name in STRATEGIES for program in STRATEGIES[name]]
)
def test_a_program_trains_as_with_the_ring(
    outcomes_of: Callable[[str], list[dict[str, Results]]], strategy: str, program: str
) -> None:
    """The ranks alike, bit for bit; a sum of two gradients has one order only, so that it has the bits of the ring."""
    (first, second), (expected, _) = outcomes_of(strategy), outcomes_of("ring")
    is_exact = program.startswith("gradients")
    torch.testing.assert_close(first[program], second[program], rtol=0, atol=0)
    torch.testing.assert_close(first[program], expected[program], **({"rtol": 0, "atol": 0} if is_exact else {}))
