"""Shares: their states, norms and memory; and what `zero3` and `fsdp` have of whole parameters, and when."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.refusals import said_by
from tests.trainers.models import BUCKETS, MODELS, Blocks, inputs, parameters_of, small_model, take_step
from tests.trainers.strategies.odd_layers import ODD_MODELS
from trainers.data_parallel import DataParallel
from trainers.strategies.flat_vector import layers_of
from trainers.strategies.sharded import ShareGradient, Withheld

ALL_MODELS = {**MODELS, **ODD_MODELS}
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


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
        take_step(parallel, optimizer, step)
    parallel.unshard()
    return kept, parameters_of(parallel)


@pytest.mark.parametrize(
    ("name", "sizes", "others"),
    [
        ("zero1", [29], [("zero1", 3), ("zero1", 2), ("zero1", 5)]),
        (BUCKETS, [5, 8, 16], [(BUCKETS, 2)]),
        ("zero3", [16, 10, 3], [("zero3", 2)]),  # a vector for each layer
        ("fsdp", [12, 4, 8, 2, 2, 1], [("ring", 3), ("fsdp", 2)]),
    ],
)
def test_states_fit_any_number(ranks: RankPool, name: str, sizes: list[int], others: list[tuple[str, int]]) -> None:
    """Of ranks: all 29 parameters, without what pads them; the same on all ranks."""
    (states, expected), *same = ranks.run(resumed, name, None, num_ranks=3)
    assert [tuple(value.shape) for value in states[0].values()] == [(4, 3), (4,), (2, 4), (2,), (1, 2), (1,)]
    assert [values["momentum_buffer"].numel() for values in states[1]["state"].values()] == sizes
    for other, _ in same:
        torch.testing.assert_close(other[1], states[1], rtol=0, atol=0)
    for other, num_ranks in others:
        for _, found in ranks.run(resumed, other, states, num_ranks=num_ranks):
            torch.testing.assert_close(found, expected)


def norms(group: dist.ProcessGroup) -> list[float]:
    """The norm of 1, 2, 3, 4 over two ranks, asked for in torch's ways; beside a gradient that all ranks have."""
    share = ShareGradient.of(torch.tensor([1.0, 2.0]) + 2 * group.rank(), group)
    several = torch._foreach_norm([share, torch.tensor([3.0, 4.0])], 1)
    assert said_by(ValueError, torch.linalg.vector_norm, share, 0).startswith("norm of order 0.0: the order must be")
    return [
        *(norm.item() for norm in (share.norm(), torch.norm(share, p=1), torch.linalg.norm(share, ord=math.inf))),
        *(same.norm(2).item() for same in (share.detach(), share.data, share.detach().data.float(), share.double())),
        *(norm.item() for norm in several),
    ]


def test_norms_are_those_of_all_shares(ranks: RankPool) -> None:
    """By all functions that torch has for it, and of the same values without a graph, or in another dtype."""
    for found in ranks.run(norms, num_ranks=2):
        assert found == pytest.approx([math.sqrt(30), 10, 4, *[math.sqrt(30)] * 4, 10, 7])


def test_layers_of_a_model() -> None:
    """Members of lists, dicts and sequences; the rest is the model's, with what two layers share."""
    model = Blocks()
    names = {parameter: name for name, parameter in model.named_parameters()}
    modules = {module: name for name, module in model.named_modules()}
    assert {
        modules[layer.module]: [names[parameter] for parameter in layer.parameters] for layer in layers_of(model)
    } == {
        "blocks.0": ["blocks.0.bias"],
        "blocks.1": ["blocks.1.0.weight", "blocks.1.0.bias"],
        "blocks.2": ["blocks.2.weight", "blocks.2.bias"],
        "": ["first.weight", "first.bias", "last.weight", "last.bias", "blocks.0.weight"],
    }


def hold_a_layer(group: dist.ProcessGroup) -> None:
    """Train a model of eight alike layers; compare the most bytes that are there at once with those of all."""
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(8)))
    size_bytes = sum(p.nbytes for p in model.parameters())
    parallel, most = DataParallel(model, "zero3", group, broadcast=True), 0
    parallel(torch.ones(1, 16)).sum().backward()

    def count(*_: object) -> None:
        nonlocal most
        most = max(most, sum(p.untyped_storage().nbytes() for p in model.parameters() if not isinstance(p, Withheld)))

    for layer in model:
        layer.register_forward_hook(count, prepend=True)
        layer.register_full_backward_pre_hook(count)
    parallel.zero_grad()
    parallel(torch.ones(1, 16, requires_grad=True)).sum().backward()
    assert most == size_bytes // 8


def test_a_rank_holds_a_layer_at_a_time(ranks: RankPool) -> None:
    """With zero3."""
    ranks.run(hold_a_layer, num_ranks=2)


def evaluated_alone(group: dist.ProcessGroup, name: str, model: str) -> list[torch.Tensor]:
    """Rank 0's results, alone, before and after the model was asked for its state; and the state after more steps."""
    parallel, results = DataParallel(ALL_MODELS[model](), name, group), []
    optimizer = parallel.optimizer(SGD)
    for step in range(3):
        take_step(parallel, optimizer, group.rank() + 10 * step)
        assert nn.Parameter not in {type(p) for p in parallel.parameters()} or name in ("ring", "ddp")
        parallel.unshard()
        if step == 1:
            parallel.state_dict()
        parallel.eval()
        if group.rank() == 0:
            with torch.no_grad():
                results += [parallel(inputs(step)), parallel.module(inputs(step))]
        parallel.train()
    return [*results, *(value.clone() for value in parallel.state_dict().values())]


@pytest.mark.parametrize(
    ("name", "model"), [("ddp", "spectral norm"), ("zero3", "spectral norm"), ("zero3", "blocks"), ("fsdp", "blocks")]
)
def test_one_rank_can_evaluate_alone(ranks: RankPool, name: str, model: str) -> None:
    """Without the others, which go on to the next step; also a model with buffers, which DDP by itself sends then."""
    assert list(ALL_MODELS["spectral norm"]().buffers())
    found, expected = (ranks.run(evaluated_alone, each, model, num_ranks=2) for each in (name, "ring"))
    torch.testing.assert_close(found, expected)
