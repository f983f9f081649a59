"""Ways to make the gradients of all ranks their mean: one small object each, to be read side by side."""

from collections.abc import Callable

import torch.distributed as dist
from torch import nn

from trainers.strategies.allreduce import AllReduce
from trainers.strategies.base import Strategy
from trainers.strategies.ddp import Ddp
from trainers.strategies.ring import Ring
from trainers.strategies.rs_ag import ReduceScatterAllGather

STRATEGIES: dict[str, Callable[[nn.Module, dist.ProcessGroup], Strategy]] = {
    "allreduce": AllReduce,
    "rs_ag": ReduceScatterAllGather,
    "ring": Ring,
    "ddp": Ddp,
}

__all__ = ["STRATEGIES", "AllReduce", "Ddp", "ReduceScatterAllGather", "Ring", "Strategy"]
