"""A recorded training step asks for the collectives that a real one makes: names, elements and order."""

from collections.abc import Callable, Iterator, Set
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from collectives.calls.call import CollectiveCall
from collectives.recording import Recorder
from collectives.recording.group import recording
from collectives.runtime import RunOperands
from ringsim.traces import Group
from tests.ranks import RankPool
from tests.trainers.models import SGD, small_model, take_step
from trainers import DataParallel
from trainers.strategies import STRATEGIES

NUM_RANKS = 2
WARM_UP_STEPS = 2  # DistributedDataParallel fills new buckets in the second
RECORDED = [*STRATEGIES, "bucketed/1e-5", "zero2/1e-5", "ddp/1e-5"]
PERIODS = {"local_sgd": "local_sgd/1", "diloco": "diloco/1"}  # so that the step that is looked at communicates
# How torch's operations are called that collectives go through, and, for those whose own tensors are recorded, which
# of them has all elements.
OPERATIONS: dict[str, tuple[str, int | None]] = {
    "c10d::allreduce_": ("all_reduce", None),
    "c10d::broadcast_": ("broadcast", None),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
}
# The collectives of a step on tensors that ranks share.
LENT: dict[str, Set[str]] = {  # what travels with ddp_hook_bf16 is a rounded copy
    **dict.fromkeys(("ring", "bucketed", "ddp_hook", "ddp_backend_ring"), frozenset({"all_reduce"})),
    **dict.fromkeys(("ddp_hook_bf16", "ddp", "zero3"), frozenset()),
    **{"zero1": {"reduce_scatter", "all_gather"}, "zero2": {"all_gather"}},
}
Calls = list[tuple[str, int]]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Ranks on Gloo."""
    with RankPool(NUM_RANKS, 60.0) as ranks:
        yield ranks


@pytest.mark.parametrize("strategy", RECORDED)
def test_recorded_calls_are_those_of_a_real_run(pool: RankPool, strategy: str) -> None:
    """Torch's and ours, each in their order; they tell which tensors ranks share, whose copies are not predicted."""
    for real, recorded, lent in pool.run(called_both_ways, PERIODS.get(strategy, strategy)):
        assert recorded == real
        assert any(real) or strategy == "none"
        assert lent == LENT.get(strategy, lent)


# What follows runs on the ranks.


def called_both_ways(group: dist.ProcessGroup, strategy: str) -> tuple[list[Calls], list[Calls], set[str]]:
    """The calls of torch and ours in one step, really made and recorded; and which are on tensors that ranks share."""
    real = real_calls(trained(group_with_one_thread(), strategy))
    recorder, groups = Recorder(), list[Group]()
    with recording(group.size(), group.rank(), recorder, groups):
        step = trained(dist.new_group(list(range(group.size()))), strategy)
        recorder.end_step()
        step()
        recorder.end_step()
    recorded: list[Calls] = [[], []]
    for call in (calls := recorder.steps[-1].calls):
        elements = call.size_bytes // getattr(torch, call.dtype).itemsize
        recorded[bool(call.algorithm)].append((call.collective, elements))
    return real, recorded, {call.collective for call in calls if call.is_lent}


class GlooWithOneThread(dist.ProcessGroupGloo):
    """Gloo that begins collectives in the order of their calls: the shapes of two at once may be seen swapped."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        options._threads, options._timeout = 1, timeout
        super().__init__(store, rank, size, options)


def group_with_one_thread() -> Any:
    """All ranks in a group of their own."""
    with patch.object(dist.distributed_c10d, "ProcessGroupGloo", GlooWithOneThread):
        return dist.new_group()


def trained(group: Any, strategy: str) -> Callable[[], None]:
    """Train a model for some steps, and return what does one more."""
    buffers = [] if strategy.startswith("ddp") else [nn.BatchNorm1d(3)]  # which DDP sends in its own way
    model = DataParallel(nn.Sequential(*buffers, small_model()), strategy, group)
    optimizer = model.optimizer(partial(SGD, momentum=0.9))

    step = partial(take_step, model, optimizer, group.rank())
    for _ in range(WARM_UP_STEPS):
        step()
    return step


def real_calls(step: Callable[[], None]) -> list[Calls]:
    """The calls of torch, as its profiler sees them, and ours."""
    ours: Calls = []
    execute = CollectiveCall.execute

    def noting(call: CollectiveCall, operands: RunOperands, *rest: Any) -> None:
        ours.append((call.collective.value, operands.tensor.numel()))
        execute(call, operands, *rest)

    with (
        patch.object(CollectiveCall, "execute", noting),
        profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen,
    ):
        step()
    events = sorted(seen.events(), key=lambda event: event.time_range.start)
    gloo = [(event.name, event.input_shapes) for event in events if event.name.startswith("gloo:")]
    torchs: Calls = []
    for event in events:
        if event.name in OPERATIONS:
            name, whole = OPERATIONS[event.name]
            shape = gloo_shape(gloo, name) if whole is None else event.input_shapes[whole]
            if name == "reduce_scatter":  # Gloo does a whole all_reduce instead
                gloo.remove(("gloo:all_reduce", [shape]))
            torchs.append((name, torch.Size(shape).numel()))
    return [torchs, ours]


def gloo_shape(gloo: list[tuple[str, Any]], name: str) -> list[int]:
    """Take the first tensor that Gloo has done that with."""
    event = next(event for event in gloo if event[0] == f"gloo:{name}")
    gloo.remove(event)
    return event[1][0]  # type: ignore[no-any-return]
