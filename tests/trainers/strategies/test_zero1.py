"""`zero1`: a share of the optimizer's state on each rank, and a whole that fits any number of ranks."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.models import inputs, small_model
from trainers.data_parallel import DataParallel

ADAM = partial(torch.optim.AdamW, lr=0.05)
Trained = tuple[dict[str, Any], dict[str, Any], list[torch.Tensor]]


def train(parallel: DataParallel, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """On the same data everywhere, so that the number of ranks makes no difference."""
    for step in steps:
        optimizer.zero_grad()
        parallel(inputs(step)).pow(2).mean().backward()
        optimizer.step()


def started(group: dist.ProcessGroup, steps: int) -> Trained:
    """The states of model and optimizer after some steps, and the parameters after as many again."""
    parallel = DataParallel(small_model(), "zero1", group)
    optimizer = parallel.optimizer(ADAM)
    train(parallel, optimizer, range(steps))
    states = copy.deepcopy((parallel.state_dict(), optimizer.state_dict()))
    train(parallel, optimizer, range(steps, 2 * steps))
    return (*states, [p.detach().clone() for p in parallel.parameters()])


def resumed(group: dist.ProcessGroup, steps: int, model: dict[str, Any], state: dict[str, Any]) -> list[torch.Tensor]:
    """The parameters after the second half of `started`."""
    parallel = DataParallel(small_model(), "zero1", group)
    optimizer = parallel.optimizer(ADAM)
    parallel.load_state_dict(model)
    optimizer.load_state_dict(copy.deepcopy(state))  # what comes from the test lies in memory that all ranks share
    train(parallel, optimizer, range(steps, 2 * steps))
    return [p.detach().clone() for p in parallel.parameters()]


@pytest.mark.parametrize(("before", "after"), [(3, 3), (3, 2), (2, 5), (1, 4)])
def test_state_is_for_any_number_of_ranks(ranks: RankPool, before: int, after: int) -> None:
    """29 parameters fit neither 2 nor 3 nor 5 ranks; a resumed run goes on as if it had not been interrupted."""
    first, *others = ranks.run(started, 3, num_ranks=before)
    model, state, expected = first
    assert state["state"][0]["exp_avg"].shape == (29,)
    for other in others:
        torch.testing.assert_close(other[1], state, rtol=0, atol=0)
    for result in ranks.run(resumed, 3, model, state, num_ranks=after):
        if before == after:
            torch.testing.assert_close(result, expected, rtol=0, atol=0)
        torch.testing.assert_close(result, expected)


def held(group: dist.ProcessGroup, name: str) -> int:
    """Bytes of optimizer state on this rank after a step."""
    parallel = DataParallel(torch.nn.Linear(99, 10), name, group, broadcast=True)
    optimizer = parallel.optimizer(ADAM)
    parallel(torch.ones(1, 99)).sum().backward()
    optimizer.step()
    tensors = [value for values in optimizer.state.values() for value in values.values() if value.dim()]
    return sum(tensor.nbytes for tensor in tensors)


def test_each_rank_holds_its_share(ranks: RankPool) -> None:
    """Two moments of 1000 float32 parameters: 8000 bytes in all, a quarter of it on each of four ranks."""
    assert ranks.run(held, "ring", num_ranks=4) == [8000] * 4
    assert ranks.run(held, "zero1", num_ranks=4) == [2000] * 4


def scheduled(group: dist.ProcessGroup) -> tuple[float, bool]:
    """The rate after two steps of a scheduler, and whether a step with it changes nothing more."""
    parallel = DataParallel(small_model(), "zero1", group)
    optimizer = parallel.optimizer(partial(torch.optim.SGD, lr=1.0))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step if step < 2 else 0.0)
    for step in range(2):
        train(parallel, optimizer, range(step, step + 1))
        scheduler.step()
    before = [p.detach().clone() for p in parallel.parameters()]
    train(parallel, optimizer, range(9, 10))
    unchanged = all(torch.equal(a, b) for a, b in zip(before, parallel.parameters(), strict=True))
    return optimizer.param_groups[0]["lr"], unchanged


def test_a_scheduler_can_take_it(ranks: RankPool) -> None:
    """The rate it sets is the one that is stepped with."""
    assert ranks.run(scheduled, num_ranks=2) == [(0.0, True)] * 2
