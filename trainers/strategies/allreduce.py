"""One `dist.all_reduce` per parameter: the loop of the tutorials."""

import torch
import torch.distributed as dist
from torch import nn

from trainers.strategies.base import Strategy


class AllReduce(Strategy):
    """Simple, and slow for its many small messages: each parameter pays the latency of a whole ring.

    What the tutorials leave out: a rank that has not used a parameter must send zeros, or it hangs all others; so the
    ranks first tell one another who has a gradient.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__(model, group)
        self._used = torch.ones(len(self.parameters))

    def synchronise(self) -> None:
        self._used.fill_(1)
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                self._used[index] = 0
        dist.all_reduce(self._used, group=self.group)
        for parameter, used in zip(self.parameters, self._used.tolist(), strict=True):
            if used:
                self._average(parameter)

    def _average(self, parameter: nn.Parameter) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=self.group)
        parameter.grad /= self.group.size()

    def vectors(self) -> list[torch.Tensor]:
        return [self._used]
