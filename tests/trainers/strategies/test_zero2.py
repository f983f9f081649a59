"""`zero2`: after a backward pass no rank has the whole gradients, and training is that of the other strategies."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.models import inputs, small_model
from tests.trainers.strategies.going_on import Resumed, goes_on
from trainers.data_parallel import DataParallel
from trainers.strategies.share_gradient import own_gradient

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
SMALL = 2e-5  # MiB: every parameter or two are a bucket


def backward(parallel: DataParallel, step: int) -> None:
    """Of this rank's own data."""
    parallel(inputs(parallel.group.rank() + 7 * step)).pow(2).mean().backward()


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


@pytest.mark.parametrize("name", ["zero2", f"zero2/{SMALL}"])
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
    for name in ("zero2", f"zero2/{SMALL}"):
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
    assert ranks.run(held, "zero1", num_ranks=4) == [(5000, 2000)] * 4
    assert ranks.run(held, "zero2", num_ranks=4) == [(1000, 2000)] * 4


def resumed(group: dist.ProcessGroup, states: Any) -> Resumed:
    """As `goes_on`."""
    return goes_on(DataParallel(small_model(), f"zero2/{SMALL}", group), SGD, states)


def test_state_is_for_any_number_of_ranks(ranks: RankPool) -> None:
    """One vector for each bucket, without what pads it; on as many ranks the run goes on bit for bit."""
    states, expected = ranks.run(resumed, None, num_ranks=3)[0]
    assert sum(values["momentum_buffer"].numel() for values in states[1]["state"].values()) == 29
    for _, found in ranks.run(resumed, states, num_ranks=3):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for _, found in ranks.run(resumed, states, num_ranks=2):
        torch.testing.assert_close(found, expected)
