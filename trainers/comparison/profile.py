"""`profile_of`: what a training step of one rank takes by itself; `measure_memory`: the bytes that it holds."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import torch
from msgspec.structs import replace
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ringsim.measurements import provenance
from ringsim.training_step import StepProfile
from trainers.loop.meter import held_bytes, new_bytes
from trainers.loop.train_step import StepResult, TrainStep
from trainers.strategies.flat_vector import described


class RankProfile(NamedTuple):
    """The profile of one rank. steps_s: how long each of the steps has taken there."""

    profile: StepProfile
    steps_s: list[float]


def profile_of(model: nn.Module, steps: Sequence[tuple[StepResult, Sequence[float]]]) -> RankProfile:
    """Return the medians over some steps in which no gradient is sent, each with what `GradientClock` noted of it."""
    backward_s = statistics.median(result.backward_s + result.sync_s for result, _ in steps)
    noted_s = ([result.backward_s - before_s for before_s in before_last_s] for result, before_last_s in steps)
    # The median of one may come after the median of the whole, by the spread of the steps.
    ready_s = [min(statistics.median(times_s), backward_s) for times_s in zip(*noted_s, strict=True)]
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters = zip(named, described(list(named.values()), ready_s), strict=True)
    profile = StepProfile(
        tuple(replace(parameter, name=name) for name, parameter in parameters),
        forward_s=statistics.median(result.forward_s for result, _ in steps),
        backward_s=backward_s,
        optimizer_s=statistics.median(result.optimizer_s for result, _ in steps),
        buffer_bytes=sum(buffer.nbytes for buffer in model.buffers()),
        provenance={**provenance(), "torch": torch.__version__, "steps": len(steps), "statistic": "median"},
    )
    return RankProfile(profile, [result.step_s - result.loss_sync_s for result, _ in steps])


def common_profile(ranks: Sequence[RankProfile], overlaps: bool) -> StepProfile:
    """Return rank 0's profile, made as long as the slowest rank's steps: all ranks wait for that one.

    Where a host has no core to spare for sending (not `overlaps`), every gradient counts as ready at the end of the
    backward pass.
    """
    slowest_s = statistics.median(max(steps) for steps in zip(*(rank.steps_s for rank in ranks), strict=True))
    first = ranks[0].profile
    factor = slowest_s / first.step_s
    backward_s = first.backward_s * factor
    return replace(
        first,
        parameters=tuple(replace(p, ready_s=p.ready_s * factor if overlaps else backward_s) for p in first.parameters),
        forward_s=first.forward_s * factor,
        backward_s=backward_s,
        optimizer_s=first.optimizer_s * factor,
    )


class Memory(NamedTuple):
    """Bytes of tensors that a rank holds after the optimizer's step; each storage counts once, where it first fits.

    parameters: those that are trained, with what pads them. gradients: what a `grad` lies in, with marks and padding.
    optimizer: its state, one number or more for each element. vectors: of the strategy, no gradient lying in them.
    activations: saved by autograd in a forward pass, without parameters.
    """

    parameters: int
    gradients: int
    optimizer: int
    vectors: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def measure_memory(train_step: TrainStep) -> Memory:
    """After a step, with its gradients still there; collective, as a forward pass may be."""
    return Memory(**held_bytes(train_step), activations=activation_bytes(train_step))


def activation_bytes(train_step: TrainStep) -> int:
    """Return the bytes that autograd saves in the forward pass of a share, without parameters; collective."""
    share, *_ = train_step.batches.share(0).split(train_step.config.accumulate)
    seen: set[int] = set()
    saved: list[torch.Tensor] = []  # kept, so that no storage comes to lie where another was

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())  # an operator that saved its own result would keep itself alive, and with it all
        return saved[-1]

    with torch.random.fork_rng(), train_step.model.no_sync(), saved_tensors_hooks(pack, lambda tensor: tensor):
        train_step.loss(share)
    new_bytes(train_step.model.model.parameters(), seen)  # afterwards, as a sharded strategy has them there only now
    return new_bytes(saved, seen)
