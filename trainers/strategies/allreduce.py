"""One `dist.all_reduce` per parameter: the loop of the tutorials."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn

from trainers.prediction import Traffic, gloo_all_reduce


class AllReduce:
    """Simple, and slow for its many small messages: each parameter pays the latency of a whole ring."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.module = model
        self._group = group
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    def synchronise(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self._group)
                parameter.grad /= self._group.size()

    def traffic(self, leads_s: Sequence[float]) -> Traffic:  # noqa: ARG002  nothing is overlapped
        calls = [gloo_all_reduce(self._group.size(), p.nbytes, p.element_size()) for p in self._parameters]
        return Traffic(calls, local_bytes=sum(p.nbytes for p in self._parameters))  # the division
