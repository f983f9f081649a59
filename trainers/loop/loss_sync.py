"""`exchange_losses`: before any gradient is averaged, all ranks know all losses, and whether one has to stop."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

import collectives
from collectives.runtime import naming_failures

ALGORITHM = "direct"  # every rank sends to every other at once: the fewest steps, and the message is tiny


class StoppedError(RuntimeError):
    """A rank cannot go on, and has told the others: all stop at the same step."""


class DivergedError(ArithmeticError):
    """A loss is infinite or not a number: training on would only spread it."""


class RankLosses(NamedTuple):
    """losses: of every rank, weighted by its share of the batch. asked: the signal that asks a rank to stop, or 0."""

    losses: list[float]
    asked: int = 0

    @property
    def mean(self) -> float:
        """The loss of the whole batch. The same bits on all ranks, as all add the same numbers."""
        return math.fsum(self.losses) / len(self.losses)

    @property
    def trouble(self) -> str:
        """The ranks whose loss is infinite or not a number; "" if there is none."""
        return ", ".join(
            f"the loss of rank {rank} is {loss}" for rank, loss in enumerate(self.losses) if not math.isfinite(loss)
        )


CANNOT_GO_ON = 1  # in the place of a signal's number; SIGHUP, whose number this is, ends a rank at once


def exchange_losses(group: dist.ProcessGroup, loss: float, stop: bool, asked: int = 0) -> RankLosses:
    """Tell the others this rank's loss and whether it has to stop, and hear theirs; collective.

    All ranks must know of a bad loss before one of them begins its backward pass: from there on gradients are averaged
    while others are still being computed, and a single one that is not a number spoils the model on all ranks.

    stop: at once. asked: the number of the signal that asks this rank to stop after the step, or 0.

    Raises StoppedError on every rank if one has to stop.
    """
    with naming_failures("exchanging the losses failed"):
        losses, stops = gather_numbers([loss, float(CANNOT_GO_ON if stop else asked)], group).T.tolist()
    if CANNOT_GO_ON in stops:
        raise StoppedError(f"rank {stops.index(CANNOT_GO_ON)} cannot continue")
    return RankLosses(losses, int(max(stops)))


def gather_numbers(own: Sequence[float], group: dist.ProcessGroup) -> torch.Tensor:
    """Return the numbers of all ranks, (ranks, numbers) float64; collective, but that one rank alone sends nothing."""
    here = torch.tensor(own, dtype=torch.float64)
    everywhere = here.repeat(group.size(), 1)
    if group.size() > 1:
        collectives.all_gather_into_tensor(everywhere, here, group, algorithm=ALGORITHM)
    return everywhere
