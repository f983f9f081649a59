"""torch's FSDP2 as a strategy, on Gloo and on the backend "ring": what is trained, saved, looked at and refused."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tests.ranks import RankPool
from tests.trainers.models import MODELS, inputs, parameters_of, seeded
from trainers.data_parallel import DataParallel


def evaluated_alone(group: dist.ProcessGroup) -> list[float]:
    """Return rank 0's results, alone, after `unshard`, before and after the model was asked for its state."""
    layers = [nn.Linear(1, 1, bias=False), nn.Linear(1, 3, bias=False), nn.Linear(3, 1, bias=False)]
    parallel = DataParallel(nn.Sequential(*layers), "fsdp", group, broadcast=True)
    parallel.load_state_dict({"0.weight": torch.ones(1, 1), "1.weight": torch.ones(3, 1), "2.weight": torch.ones(1, 3)})
    results = []
    for asks in (False, True):
        parallel.unshard()
        if asks:
            parallel.state_dict()
        if group.rank() == 0:
            with torch.no_grad():
                results += [parallel(torch.ones(1, 1)).item(), parallel.module(torch.ones(1, 1)).item()]
        for _ in range(2):
            parallel(torch.ones(1, 1)).sum().backward()
        assert all(isinstance(p, DTensor) for p in parallel.parameters())
    return results


def test_one_rank_can_evaluate_alone(ranks: RankPool) -> None:
    """Without the others, which go on to the next step."""
    alone, other = ranks.run(evaluated_alone, num_ranks=2)
    assert alone == [3.0] * 4
    assert other == []


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
        """Nothing before the step's own passes."""

    def writing(self, _: int) -> None:
        """Half of every parameter, and a state in between that has it."""
        self.parallel.unshard()
        with torch.no_grad():
            for parameter in self.parallel.parameters():
                parameter.mul_(0.5)
        plain, state = self.model.state_dict(), self.parallel.state_dict()
        assert len(plain) == len(state)
        self.parallel.load_state_dict({name: value / 0.75 for name, value in state.items()})

    def writing_data(self, step: int) -> None:
        """The same where autograd does not see it; and to what the optimizer has, which are this rank's rows."""
        self.parallel.unshard()
        for parameter in self.parallel.parameters():
            parameter.data.mul_(0.5)
        self.parallel.unshard()
        if step == 1:
            with torch.no_grad():
                for parameter in self.optimizer.param_groups[0]["params"]:
                    parameter.mul_(0.5)

    def trained(self, does: str) -> list[torch.Tensor]:
        """The parameters after three steps."""
        for step in range(3):
            getattr(self, does)(step)
            self.loss(step).backward()
            if does == "straying":
                self.loss(step + 1)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.parallel.unshard()
        return parameters_of(self.parallel)


def looped(group: dist.ProcessGroup, name: str, does: str) -> list[torch.Tensor]:
    """The parameters that such a program ends with."""
    return Loop(group, name).trained(does)


def closed(group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    """The parameters after steps of two backward passes, of which the second one is that of a closure."""
    loop = Loop(group, name)

    def closure(step: int) -> torch.Tensor:
        loss = loop.loss(step)
        loss.backward()
        return loss

    for step in range(3):
        loop.optimizer.zero_grad()
        with loop.parallel.no_sync():
            closure(step + 20)
        if step == 1:
            loop.optimizer.step(closure=partial(closure, step))
        else:
            loop.optimizer.step(partial(closure, step))
    loop.parallel.unshard()
    return parameters_of(loop.parallel)


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


def scaled(group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    """The parameters after steps with torch's GradScaler; in one rank 1 has an infinite gradient in rank 0's share."""
    parallel = DataParallel(seeded(Unbounded), name, group)
    optimizer = parallel.optimizer(partial(torch.optim.SGD, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        largest = float("inf") if step == group.rank() == 1 else 1.0
        scaler.scale(parallel(inputs(group.rank() + 10 * step), largest)).backward()
        scaler.step(optimizer)
        scaler.update()
    parallel.unshard()
    assert scaler.get_scale() == 2.0  # halved once
    return parameters_of(parallel)


LOOPS = ("failing", "dropping", "holding", "overlapping", "straying", "writing", "writing_data")


@pytest.mark.parametrize(("case", "does"), [*((looped, (loop,)) for loop in LOOPS), (closed, ()), (scaled, ())])
def test_programs_get_what_they_get_with_the_ring(
    ranks: RankPool, case: Callable[..., object], does: tuple[str, ...]
) -> None:
    """Ranks step alike, with any work between the passes, by a closure, and all skip a step that one must skip."""
    expected = ranks.run(case, "ring", *does, num_ranks=3)[0]
    for found in ranks.run(case, "fsdp", *does, num_ranks=3):
        torch.testing.assert_close(found, expected)
