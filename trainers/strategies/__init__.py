"""Ways to make the gradients of all ranks their mean: one small object each, to be read side by side.

To be read in this order: no_sync, allreduce, flat, rs_ag, ring, bucketed, ddp, zero1, zero2, zero3,
fsdp, local_sgd, power_sgd.

>>> from trainers import STRATEGIES
>>> list(STRATEGIES)[:5]
['none', 'allreduce', 'flat', 'rs_ag', 'ring']
"""

from collections.abc import Callable
from functools import partial

import torch

from trainers.strategies.allreduce import AllReduce
from trainers.strategies.base import Strategy
from trainers.strategies.bucketed import Bucketed
from trainers.strategies.ddp import Ddp, DdpOnRing, DdpRing
from trainers.strategies.flat import Flat
from trainers.strategies.fsdp import Fsdp, FsdpOnRing
from trainers.strategies.local_sgd import LocalSgd, OuterMomentum
from trainers.strategies.no_sync import NoSync
from trainers.strategies.power_sgd import PowerSgd
from trainers.strategies.ring import Ring
from trainers.strategies.rs_ag import ReduceScatterAllGather
from trainers.strategies.zero1 import Zero1
from trainers.strategies.zero2 import Zero2
from trainers.strategies.zero3 import Zero3
from trainers.strategy_names import parse_strategy

MakeStrategy = Callable[..., Strategy]  # of a model and a group; some take the number after a slash, too

# The names stand in strategy_names.py too, which is read before torch is loaded.
STRATEGIES: dict[str, MakeStrategy] = {
    "none": NoSync,
    "allreduce": AllReduce,
    "flat": Flat,
    "rs_ag": ReduceScatterAllGather,
    "ring": Ring,
    "bucketed": Bucketed,
    "bucketed_bf16": partial(Bucketed, wire=torch.bfloat16),
    "ddp": Ddp,
    "ddp_ring": DdpRing,
    "ddp_ring_bf16": partial(DdpRing, wire=torch.bfloat16),
    "ddp_on_ring": DdpOnRing,
    "zero1": Zero1,
    "zero2": Zero2,
    "zero3": Zero3,
    "fsdp": Fsdp,
    "fsdp_on_ring": FsdpOnRing,
    "local_sgd": LocalSgd,
    "diloco": partial(LocalSgd, outer=OuterMomentum()),
    "powersgd": PowerSgd,
}


def make_strategy(name: str) -> MakeStrategy:
    """That of STRATEGIES, with the number after the slash: "ddp/4" and the like have buckets of 4 MiB.

    Raises ValueError for another name.
    """
    plain, number = parse_strategy(name)
    return partial(STRATEGIES[plain], **number) if number else STRATEGIES[plain]


__all__ = [
    "STRATEGIES",
    "AllReduce",
    "Bucketed",
    "Ddp",
    "DdpOnRing",
    "DdpRing",
    "Flat",
    "Fsdp",
    "FsdpOnRing",
    "LocalSgd",
    "MakeStrategy",
    "NoSync",
    "OuterMomentum",
    "PowerSgd",
    "ReduceScatterAllGather",
    "Ring",
    "Strategy",
    "Zero1",
    "Zero2",
    "Zero3",
    "make_strategy",
]
