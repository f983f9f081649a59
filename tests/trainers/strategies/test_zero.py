"""`zero1` and `zero2`: a rank has shares of optimizer and gradients; training is that of `ring`."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.models import BUCKETS, backward, inputs, small_model
from tests.trainers.strategies.going_on import Resumed, goes_on
from trainers.data_parallel import DataParallel
from trainers.strategies.share_gradient import own_gradient

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def trained(group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    """The parameters after steps of two synchronised backward passes and one that only accumulates."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(SGD)
    for step in range(3):
        (optimizer if step % 2 else parallel).zero_grad()
        backward(parallel, step)
        with parallel.no_sync():
            backward(parallel, step + 10)
        backward(parallel, step + 20)
        optimizer.step()
    return [p.detach().clone() for p in parallel.parameters()]


@pytest.mark.parametrize("name", ["zero2", BUCKETS])
def test_training_is_that_of_the_ring(ranks: RankPool, name: str) -> None:
    """Of several passes, too: `ring` averages what has accumulated again, which changes nothing but rounding."""
    expected = ranks.run(trained, "ring", num_ranks=2)[0]
    first, second = ranks.run(trained, name, num_ranks=2)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, expected)


def gradients(group: dist.ProcessGroup, name: str) -> torch.Tensor:
    """The mean gradients of one backward pass, put together from all ranks."""
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(partial(torch.optim.SGD, lr=1.0))
    before = torch.cat([p.detach().clone().view(-1) for p in parallel.parameters()])
    backward(parallel, 0)
    if name.startswith("zero2"):
        assert all(own_gradient(p) is None for p in parallel.parameters())
    optimizer.step()
    return before - torch.cat([p.detach().view(-1) for p in parallel.parameters()])


def test_two_ranks_get_the_bits_of_the_ring(ranks: RankPool) -> None:
    """A sum of two has one order only; no parameter has a gradient after the backward pass."""
    expected = ranks.run(gradients, "ring", num_ranks=2)
    for name in ("zero2", BUCKETS):
        torch.testing.assert_close(ranks.run(gradients, name, num_ranks=2), expected, rtol=0, atol=0)


def held(group: dist.ProcessGroup, name: str) -> tuple[int, int]:
    """Bytes of gradients and of optimizer state on this rank after a step."""
    parallel = DataParallel(torch.nn.Linear(99, 10), name, group, broadcast=True)
    optimizer = parallel.optimizer(torch.optim.AdamW)
    parallel(torch.ones(1, 99)).sum().backward()
    optimizer.step()
    owners = [*parallel.parameters(), *(p for some in optimizer.param_groups for p in some["params"])]
    gradients = [gradient for gradient in map(own_gradient, owners) if gradient is not None]
    found = {gradient.data_ptr(): gradient.nbytes for gradient in gradients}
    state = [value for values in optimizer.state.values() for value in values.values() if value.dim()]
    return sum(found.values()), sum(tensor.nbytes for tensor in state)


def test_each_rank_holds_its_share(ranks: RankPool) -> None:
    """1000 float32 parameters over four ranks: `zero1` still has all gradients of the rank beside its share."""
    assert ranks.run(held, "ring", num_ranks=4) == [(4000, 8000)] * 4
    assert ranks.run(held, "zero1", num_ranks=4) == [(5000, 2000)] * 4
    assert ranks.run(held, "zero2", num_ranks=4) == [(1000, 2000)] * 4


def resumed(group: dist.ProcessGroup, name: str, states: Any) -> Resumed:
    """As `goes_on`."""
    return goes_on(DataParallel(small_model(), name, group), SGD, states)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("zero1", 3, 3), ("zero1", 3, 2), ("zero1", 2, 5), ("zero1", 1, 4), (BUCKETS, 3, 3), (BUCKETS, 3, 2)],
)
def test_state_is_for_any_number_of_ranks(ranks: RankPool, name: str, before: int, after: int) -> None:
    """29 parameters, without what pads them; on as many ranks the run goes on bit for bit."""
    (states, expected), *others = ranks.run(resumed, name, None, num_ranks=before)
    assert sum(values["momentum_buffer"].numel() for values in states[1]["state"].values()) == 29
    for other, _ in others:
        torch.testing.assert_close(other[1], states[1], rtol=0, atol=0)
    exactly = {"rtol": 0, "atol": 0} if before == after else {}
    for _, found in ranks.run(resumed, name, states, num_ranks=after):
        torch.testing.assert_close(found, expected, **exactly)


def train(parallel: DataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Take a step on the same data everywhere."""
    optimizer.zero_grad()
    parallel(inputs(step)).pow(2).mean().backward()
    optimizer.step()


def scheduled(group: dist.ProcessGroup) -> tuple[float, bool]:
    """The rate after two steps of a scheduler, and whether a step with it changes nothing more."""
    parallel = DataParallel(small_model(), "zero1", group)
    optimizer = parallel.optimizer(partial(torch.optim.SGD, lr=1.0))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step if step < 2 else 0.0)
    for step in range(2):
        train(parallel, optimizer, step)
        scheduler.step()
    before = [p.detach().clone() for p in parallel.parameters()]
    train(parallel, optimizer, 9)
    unchanged = all(torch.equal(a, b) for a, b in zip(before, parallel.parameters(), strict=True))
    return optimizer.param_groups[0]["lr"], unchanged


def test_a_scheduler_can_take_it(ranks: RankPool) -> None:
    """The rate it sets is the one that is stepped with."""
    assert ranks.run(scheduled, num_ranks=2) == [(0.0, True)] * 2
