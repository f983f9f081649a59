"""Nothing: every rank trains a model of its own."""

from trainers.strategies.base import Strategy


class NoSync(Strategy):
    """Here to be looked at: the ranks' losses and parameters drift apart from the first step on."""
