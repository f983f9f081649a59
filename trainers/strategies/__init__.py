"""Ways to make the gradients of all ranks their mean: one small object each, to be read side by side.

To be read in this order: plain, bucketed, ddp, zero, zero3, fsdp, local_sgd, power_sgd.

>>> from trainers import STRATEGIES
>>> list(STRATEGIES)[:5]
['none', 'allreduce', 'flat', 'rs_ag', 'ring']
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

from trainers.strategies.base import Strategy
from trainers.strategies.ddp import group_on_ring
from trainers.strategy_names import STRATEGY_NAMES, parse_strategy, strategy_info

MakeStrategy = Callable[..., Strategy]  # of a model and a group; some take the number after a slash, too


def make_strategy(name: str) -> MakeStrategy:
    """Return the class of a strategy with the options of its row and of its name: "ddp/4" has buckets of 4 MiB.

    Raises ValueError for an unknown name.
    """
    options: dict[str, Any] = parse_strategy(name)[1]
    info = strategy_info(name)
    if info.wire:
        options["wire"] = getattr(torch, info.wire)
    module, _, sync = info.sync.partition(".")
    make: MakeStrategy = getattr(import_module(f"trainers.strategies.{module}"), sync)
    if info.backend:
        return lambda model, group: make(model, group_on_ring(group), **options)
    return partial(make, **options) if options else make


STRATEGIES = {name: make_strategy(name) for name in STRATEGY_NAMES}
