"""`goes_on`: four steps, the last two of which can be taken from saved states, as of a run that goes on."""

import copy
from typing import Any

import torch

from tests.trainers.models import inputs
from trainers.data_parallel import DataParallel
from trainers.strategies.base import MakeOptimizer

Resumed = tuple[Any, list[torch.Tensor]]


def goes_on(parallel: DataParallel, make: MakeOptimizer, states: Any) -> Resumed:
    """The states of model and optimizer after two steps on the same data everywhere, and the parameters after four.

    states: what this gave in an earlier run, to begin there; None: begin with the first step.
    """
    optimizer = parallel.optimizer(make)
    kept: Any = copy.deepcopy(states)  # what comes from the test lies in memory that all ranks share
    if kept:
        parallel.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
    for step in range(2 if kept else 0, 4):
        if step == 2 and not kept:
            kept = copy.deepcopy((parallel.state_dict(), optimizer.state_dict()))
        optimizer.zero_grad()
        parallel(inputs(step)).pow(2).mean().backward()
        optimizer.step()
    parallel.unshard()
    return kept, [p.detach().clone() for p in parallel.parameters()]
