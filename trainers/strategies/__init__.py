"""Ways to make the gradients of all ranks their mean: one small object each, to be read side by side.

To be read in this order: plain, bucketed, ddp, zero, zero3, fsdp, local_sgd, power_sgd.

>>> from trainers import STRATEGIES
>>> list(STRATEGIES)[:5]
['none', 'allreduce', 'flat', 'rs_ag', 'ring']
"""

from collections.abc import Callable
from functools import partial

import torch

from trainers.strategies.base import Strategy
from trainers.strategies.bucketed import Bucketed
from trainers.strategies.ddp import Ddp, DdpBackendRing, DdpHook
from trainers.strategies.fsdp import Fsdp, FsdpBackendRing
from trainers.strategies.local_sgd import LocalSgd, OuterMomentum
from trainers.strategies.plain import AllReduce, Flat, NoSync, ReduceScatterAllGather, Ring
from trainers.strategies.power_sgd import PowerSgd
from trainers.strategies.zero import Zero1, Zero2
from trainers.strategies.zero3 import Zero3
from trainers.strategy_names import parse_strategy

MakeStrategy = Callable[..., Strategy]  # of a model and a group; some take the number after a slash, too

# What is known of each by its name stands in strategy_names.py, which is read before torch is loaded.
STRATEGIES: dict[str, MakeStrategy] = {
    "none": NoSync,
    "allreduce": AllReduce,
    "flat": Flat,
    "rs_ag": ReduceScatterAllGather,
    "ring": Ring,
    "bucketed": Bucketed,
    "bucketed_bf16": partial(Bucketed, wire=torch.bfloat16),
    "ddp": Ddp,
    "ddp_hook": DdpHook,
    "ddp_hook_bf16": partial(DdpHook, wire=torch.bfloat16),
    "ddp_backend_ring": DdpBackendRing,
    "zero1": Zero1,
    "zero2": Zero2,
    "zero3": Zero3,
    "fsdp": Fsdp,
    "fsdp_backend_ring": FsdpBackendRing,
    "local_sgd": LocalSgd,
    "diloco": partial(LocalSgd, outer=OuterMomentum()),
    "powersgd": PowerSgd,
}


def make_strategy(name: str) -> MakeStrategy:
    """Return the class of that name, with the number after the slash: "ddp/4" and the like have buckets of 4 MiB.

    Raises ValueError for another name.
    """
    plain, number = parse_strategy(name)
    return partial(STRATEGIES[plain], **number) if number else STRATEGIES[plain]
