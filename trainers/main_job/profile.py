"""`record_profile`: what a training step of one rank takes by itself, and when each gradient is ready."""

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from ringsim.measurements import provenance
from ringsim.training_step import StepProfile
from trainers.loop.gradient_clock import GradientClock
from trainers.strategies.parameters import described
from trainers.tasks.data import Shard
from trainers.tasks.model import next_token_loss

WARM_UP_STEPS = 3  # the optimizer's state and the gradients are allocated
STEPS = 15


class _Times(NamedTuple):
    """Of one step, in seconds; ready_s: by parameter, from the start of the backward pass."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    ready_s: list[float]


class Recorded(NamedTuple):
    """steps_s: how long each of the steps has taken on this rank."""

    profile: StepProfile
    steps_s: list[float]


def record_profile(
    model: nn.Module, shard: Shard, learning_rate: float, between: Callable[[], None] = lambda: None
) -> Recorded:
    """Medians over some steps on a copy of `model`, which is not synchronised with other ranks.

    between: called after each step, and not timed: what will come between two steps, and may slow the next one down.
    """
    model = copy.deepcopy(model)
    clock = GradientClock(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    steps = []
    for step in range(WARM_UP_STEPS + STEPS):
        steps.append(_step(model, clock, optimizer, shard.batch(step)))
        between()
    steps = steps[WARM_UP_STEPS:]
    return Recorded(_profile_of(model, steps), [step.forward_s + step.backward_s + step.optimizer_s for step in steps])


def _profile_of(model: nn.Module, steps: Sequence[_Times]) -> StepProfile:
    backward_s = statistics.median(step.backward_s for step in steps)
    ready_s = [statistics.median(values) for values in zip(*(step.ready_s for step in steps), strict=True)]
    # The median of one may come after the median of the whole, by the spread of the steps.
    ready_s = [min(at_s, backward_s) for at_s in ready_s]
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters = zip(named, described(named.values(), ready_s), strict=True)
    return StepProfile(
        tuple(replace(parameter, name=name) for name, parameter in parameters),
        forward_s=statistics.median(step.forward_s for step in steps),
        backward_s=backward_s,
        optimizer_s=statistics.median(step.optimizer_s for step in steps),
        buffer_bytes=sum(buffer.nbytes for buffer in model.buffers()),
        provenance={**provenance(), "torch": torch.__version__, "steps": STEPS, "statistic": "median"},
    )


def _step(model: nn.Module, clock: GradientClock, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> _Times:
    begin_s = time.perf_counter()
    optimizer.zero_grad()
    loss = next_token_loss(model, batch)
    backward_from_s = time.perf_counter()
    torch.autograd.backward(loss)
    backward_until_s = time.perf_counter()
    optimizer.step()
    end_s = time.perf_counter()
    parts = (backward_from_s - begin_s, backward_until_s - backward_from_s, end_s - backward_until_s)
    return _Times(*parts, clock.since_s(backward_from_s))
