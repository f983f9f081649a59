"""`Strategy`: what the training loop asks of a way to synchronise gradients."""

from collections.abc import Sequence
from typing import Protocol

from torch import nn

from trainers.prediction import Traffic


class Strategy(Protocol):
    """Built from the model and the process group."""

    @property
    def module(self) -> nn.Module:
        """What the loop calls in place of the model: the model itself, or a wrapper of it."""

    def synchronise(self) -> None:
        """Make every gradient the mean over all ranks; called after each backward pass."""

    def traffic(self, leads_s: Sequence[float]) -> Traffic:
        """What one synchronisation moves: what the prediction is made from.

        leads_s: for each parameter, how long before the end of the backward pass its gradient is ready.
        """
