"""torch's FSDP2 as a strategy, on Gloo and on the backend "ring": what is trained, saved, looked at and refused."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tests.ranks import RankPool, group_on
from tests.trainers.models import MODELS, Tied, inputs, seeded, small_model
from tests.trainers.strategies.going_on import Resumed, goes_on
from trainers.data_parallel import DataParallel

ADAM = partial(torch.optim.AdamW, lr=0.05)


def wrapped(group: dist.ProcessGroup, name: str, model: nn.Module) -> DataParallel:
    """fsdp_on_ring on a group that is of that backend: one that it makes has the same name each time."""
    return DataParallel(model, name, group_on("ring", group.size()) if name == "fsdp_on_ring" else group)


def trained(group: dist.ProcessGroup, name: str, model: str) -> list[torch.Tensor]:
    """The parameters after steps of two synchronised backward passes and one that only accumulates."""
    parallel = wrapped(group, name, MODELS[model]())
    optimizer = parallel.optimizer(ADAM)
    for step in range(3):
        (optimizer if step % 2 else parallel).zero_grad()
        for number in range(3):
            data = inputs(group.rank() + 7 * step + 10 * number)
            if number == 1:
                with parallel.no_sync():
                    parallel(data).pow(2).mean().backward()
            else:
                parallel(data).pow(2).mean().backward()
        parallel.clip_grad_norm_(0.5)
        optimizer.step()
        assert name == "ring" or all(isinstance(p, DTensor) for p in parallel.parameters())
        parallel.check_identical()
    return [p.detach().clone() for p in parallel.parameters()]


@pytest.mark.parametrize("name", ["fsdp", "fsdp_on_ring"])
@pytest.mark.parametrize("model", ["sequential", "blocks", "recomputed"])
def test_training_is_that_of_the_ring(ring_ranks: RankPool, name: str, model: str) -> None:
    """Whatever shares parameters, takes part twice or is computed anew."""
    expected = ring_ranks.run(trained, "ring", model, num_ranks=2)[0]
    for found in ring_ranks.run(trained, name, model, num_ranks=2):
        torch.testing.assert_close(found, expected)


def resumed(group: dist.ProcessGroup, name: str, states: Any) -> Resumed:
    """As `goes_on`."""
    return goes_on(wrapped(group, name, small_model()), ADAM, states)


@pytest.mark.parametrize("name", ["fsdp", "fsdp_on_ring"])
def test_states_are_whole(ring_ranks: RankPool, name: str) -> None:
    """They are plain tensors, in the form of `ring`'s, which can go on from them, on any number of ranks."""
    states, expected = ring_ranks.run(resumed, name, None, num_ranks=3)[0]
    assert [tuple(value.shape) for value in states[0].values()] == [(4, 3), (4,), (2, 4), (2,), (1, 2), (1,)]
    assert [tuple(state["exp_avg"].shape) for state in states[1]["state"].values()] == [
        tuple(value.shape) for value in states[0].values()
    ]
    for _, found in ring_ranks.run(resumed, name, states, num_ranks=3):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for other, num_ranks in (("ring", 3), (name, 2)):
        for _, found in ring_ranks.run(resumed, other, states, num_ranks=num_ranks):
            torch.testing.assert_close(found, expected)


def evaluated_alone(group: dist.ProcessGroup) -> list[float]:
    """What rank 0 alone computes twice after `unshard`, before and after the model was asked for its state."""
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


def refused(group: dist.ProcessGroup, use: str) -> str:
    """What is said of a use that cannot be."""
    try:
        parallel = DataParallel(seeded(Tied) if use == "dtypes" else small_model(), "fsdp", group)
        if use == "compiled":
            parallel.compile()
        loss = parallel(inputs(0)).sum()
        with parallel.no_sync():
            loss.backward()
        if use == "held":
            parallel.sync_gradients()
        parallel.unshard()
        optimizer = ADAM(parallel.parameters())
        parallel(inputs(0)).sum().backward()
        optimizer.step()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            "dtypes",
            "ValueError: fsdp: a layer has parameters of torch.float32, torch.float64, and torch's fully_s",
        ),
        ("compiled", "ValueError: fsdp: its passes are not compiled here; take ddp or zero2"),
        (
            "held",
            "ShardingError: fsdp: only backward passes synchronise gradients; take the last one outside of no",
        ),
        (
            "foreign",
            "ShardingError: AdamW was made of the model's own parameters: with fsdp a rank has the mean grad",
        ),
    ],
)
def test_misuse_is_an_error_on_every_rank(ranks: RankPool, use: str, message: str) -> None:
    """In one line, and with what to do."""
    for error in ranks.run(refused, use, num_ranks=2):
        assert error.startswith(message)
        assert "\n" not in error
