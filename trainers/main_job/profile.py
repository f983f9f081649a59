"""`record_profile`: what a training step of one rank takes by itself; `measure_memory`: the bytes that it holds."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ringsim.measurements import provenance
from ringsim.training_step import StepProfile
from trainers.loop.meter import held_bytes, new_bytes
from trainers.loop.train_step import TrainStep, optimizer_forms
from trainers.predictions.memory import Memory
from trainers.strategies.flat_vector import described

WARM_UP_STEPS = 3  # the optimizer's state and the gradients are allocated
STEPS = 15


class _Times(NamedTuple):
    """The times of one step, in seconds; ready_s: by parameter, from the start of the backward pass."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    ready_s: list[float]

    @property
    def step_s(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s


class Recorded(NamedTuple):
    """steps_s: how long each of the steps has taken on this rank."""

    profile: StepProfile
    steps_s: list[float]


def record_profile(train_step: TrainStep, between: Callable[[], None] = lambda: None) -> Recorded:
    """Medians over some steps without what the ranks tell each other; collective.

    Raises DivergedError, on all ranks alike, if a loss is not finite.

    train_step: of the strategy "none".
    between: called after each step, and not timed: what will come between two steps, and may slow the next one down.
    """
    steps = []
    for step in range(WARM_UP_STEPS + STEPS):
        steps.append(_timed(train_step, step))
        between()
    steps = steps[WARM_UP_STEPS:]
    return Recorded(_profile_of(train_step.model.model, steps), [step.step_s for step in steps])


def _timed(train_step: TrainStep, step: int) -> _Times:
    result = train_step.run(step)
    result.require_finite(f"training step {step}, without synchronisation")
    ready_s = [result.backward_s - before_s for before_s in train_step.clock.before_last_s()]
    return _Times(result.forward_s, result.backward_s + result.sync_s, result.optimizer_s, ready_s)


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


def measure_memory(train_step: TrainStep) -> Memory:
    """After a step, with its gradients still there; collective, as a forward pass may be."""
    return Memory(**held_bytes(train_step), activations=activation_bytes(train_step))


def activation_bytes(train_step: TrainStep) -> int:
    """Return the bytes that autograd saves in the forward pass of a share, without parameters; collective."""
    share, *_ = train_step.batches.share(0).split(train_step.config.accumulate)
    seen: set[int] = set()
    saved: list[torch.Tensor] = []  # kept, so that no storage comes to lie where another was

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.random.fork_rng(), train_step.model.no_sync(), saved_tensors_hooks(pack, lambda tensor: tensor):
        train_step.loss(share)
    new_bytes(train_step.model.model.parameters(), seen)  # afterwards, as a sharded strategy has them there only now
    return new_bytes(saved, seen)


def states_per_element(train_step: TrainStep) -> int:
    """How many numbers the optimizer keeps for each element of a parameter, found out by a step without numbers."""
    (form,) = optimizer_forms(train_step.task.optimizer, [torch.empty(2)])
    return sum(shape == (2,) for shape in form.values())
