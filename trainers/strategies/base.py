"""`Strategy`: what the training loop asks of a way to synchronise gradients."""

from collections.abc import Sequence
from typing import Protocol

from torch import nn

from trainers.prediction import Call


class Strategy(Protocol):
    """Built from the model and the process group.

    module: what the loop calls in place of the model (the model itself, or a wrapper of it).
    """

    module: nn.Module

    def synchronise(self) -> None:
        """Make every gradient the mean over all ranks; called after each backward pass."""

    def calls(self, leads_s: Sequence[float]) -> list[Call]:
        """The collectives of one synchronisation, in order: what the prediction is made from.

        leads_s: for each parameter, how long before the end of the backward pass its gradient is ready.
        """
