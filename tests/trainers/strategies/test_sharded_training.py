"""Sharded strategies: training, gradients and states are those of `ring`, held in shares."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.ranks import RankPool
from tests.trainers.models import BUCKETS, MODELS, backward, inputs, parameters_of, small_model
from tests.trainers.strategies.odd_layers import ODD_MODELS
from trainers.data_parallel import DataParallel
from trainers.strategies.withheld import own_gradient

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
FSDP = [("fsdp", model) for model in ("sequential", "blocks", "recomputed", "shared", "boxed")]
TRAINED = [
    ("zero2", "sequential"),
    (BUCKETS, "sequential"),
    *(("zero3", name) for name in (*MODELS, *ODD_MODELS) if name != "branching"),
    *FSDP,
    *(("fsdp_backend_ring", model) for _, model in FSDP),
]


def trained(group: dist.ProcessGroup, name: str, model: str) -> tuple[list[torch.Tensor], list[int]]:
    """Return the parameters after steps of two synchronised backward passes and one that only accumulates.

    And how many elements of trained parameters this rank held outside of its share after each step.
    """
    parallel = DataParallel({**MODELS, **ODD_MODELS}[model](), name, group)
    optimizer = parallel.optimizer(SGD)
    held = []
    for step in range(3):
        (optimizer if step % 2 else parallel).zero_grad()
        backward(parallel, step)
        with parallel.no_sync():
            backward(parallel, step + 10)
        backward(parallel, step + 20)
        parallel.clip_grad_norm_(2.0)
        optimizer.step()
        trained = [p for p in parallel.parameters() if p.requires_grad]
        held.append(sum(p.numel() for p in trained if not isinstance(p, DTensor)))
        if step == 1:
            with torch.no_grad():
                parallel(inputs(0))
        if name.startswith("fsdp"):
            parallel.check_identical()
    parallel.check_identical()
    parallel.unshard()
    return parameters_of(parallel), held


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's older functions that normalise weights
@pytest.mark.parametrize(("name", "model"), TRAINED)
def test_training_is_that_of_the_ring(ranks: RankPool, name: str, model: str) -> None:
    """Whatever shares parameters, takes part twice, is computed anew or hides its tensors.

    Between steps a rank with `zero3` or `fsdp` holds no whole parameter. `ring` averages again what has accumulated,
    which changes nothing but rounding.
    """
    expected, _ = ranks.run(trained, "ring", model, num_ranks=2)[0]
    (first, held), (second, _) = ranks.run(trained, name, model, num_ranks=2)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, expected)
    assert name.startswith("zero2") or held == [0, 0, 0]


def gradients(group: dist.ProcessGroup, name: str, model: str) -> list[torch.Tensor]:
    """Return the mean gradients of one backward pass, put together from all ranks, where all have used the same."""
    parallel = DataParallel(MODELS[model](), name, group)
    optimizer = parallel.optimizer(partial(torch.optim.SGD, lr=1.0))
    before = parameters_of(parallel)
    parallel(inputs(group.rank()).abs()).pow(2).mean().backward()
    assert name == "ring" or all(own_gradient(p) is None for p in parallel.parameters())
    optimizer.step()
    parallel.unshard()
    return [old - new.detach() for old, new in zip(before, parallel.parameters(), strict=True)]


@pytest.mark.parametrize(
    ("name", "model"), [("zero2", "sequential"), (BUCKETS, "sequential"), *(("zero3", model) for model in MODELS)]
)
def test_two_ranks_get_the_bits_of_the_ring(ranks: RankPool, name: str, model: str) -> None:
    """A sum of two has one order only. Parameters that take no part stay as they are; none keeps a gradient."""
    expected = ranks.run(gradients, "ring", model, num_ranks=2)
    torch.testing.assert_close(ranks.run(gradients, name, model, num_ranks=2), expected, rtol=0, atol=0)


def resumed(group: dist.ProcessGroup, name: str, states: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return the states of model and optimizer after two steps on the same data everywhere, and parameters after four.

    states: what this gave in an earlier run, to begin there; None: begin with the first step.
    """
    parallel = DataParallel(small_model(), name, group)
    optimizer = parallel.optimizer(SGD)
    kept: Any = copy.deepcopy(states)  # what comes from the test lies in memory that all ranks share
    if kept:
        parallel.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
    for step in range(2 if kept else 0, 4):
        if step == 2 and not kept:
            kept = copy.deepcopy((parallel.state_dict(), optimizer.state_dict()))
        optimizer.zero_grad()
        parallel(inputs(step)).pow(2).mean().backward()
        optimizer.step()
    parallel.unshard()
    return kept, parameters_of(parallel)


@pytest.mark.parametrize(
    ("name", "before", "sizes", "others"),
    [
        ("zero1", 3, [29], [("zero1", 2)]),
        ("zero1", 2, [29], [("zero1", 5)]),
        ("zero1", 1, [29], [("zero1", 4)]),
        (BUCKETS, 3, [5, 8, 16], [(BUCKETS, 2)]),
        ("zero3", 3, [16, 10, 3], [("zero3", 2)]),  # a vector for each layer
        ("fsdp", 3, [12, 4, 8, 2, 2, 1], [("ring", 3), ("fsdp", 2)]),
        ("fsdp_backend_ring", 3, [12, 4, 8, 2, 2, 1], [("ring", 3), ("fsdp_backend_ring", 2)]),
    ],
)
def test_states_are_for_any_number_of_ranks(
    ranks: RankPool, name: str, before: int, sizes: list[int], others: list[tuple[str, int]]
) -> None:
    """All 29 parameters, without what pads them; on as many ranks the run goes on bit for bit."""
    (states, expected), *same = ranks.run(resumed, name, None, num_ranks=before)
    assert [tuple(value.shape) for value in states[0].values()] == [(4, 3), (4,), (2, 4), (2,), (1, 2), (1,)]
    assert [values["momentum_buffer"].numel() for values in states[1]["state"].values()] == sizes
    for other, _ in same:
        torch.testing.assert_close(other[1], states[1], rtol=0, atol=0)
    for _, found in ranks.run(resumed, name, states, num_ranks=before):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for other, num_ranks in others:
        for _, found in ranks.run(resumed, other, states, num_ranks=num_ranks):
            torch.testing.assert_close(found, expected)


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
    before = parameters_of(parallel)
    train(parallel, optimizer, 9)
    unchanged = all(torch.equal(a, b) for a, b in zip(before, parallel.parameters(), strict=True))
    return optimizer.param_groups[0]["lr"], unchanged


def test_a_scheduler_can_take_it(ranks: RankPool) -> None:
    """The rate it sets is the one that is stepped with."""
    assert ranks.run(scheduled, num_ranks=2) == [(0.0, True)] * 2
