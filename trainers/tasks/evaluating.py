"""`evaluate`: the figures of a model; `evaluating`: a model as it is to be judged."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainers.tasks.base import Task

if TYPE_CHECKING:
    import torch
    from torch import nn


def evaluate(task: Task, model: "nn.Module") -> dict[str, float | None]:
    """The task's figures on held-out data; None for one that is not finite, which JSON does not have."""
    with evaluating(model):
        figures = task.evaluate(model)
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


@contextmanager
def evaluating(model: "nn.Module") -> "Iterator[torch.device]":
    """Put `model` into eval mode and record no gradients; afterwards each module of it is in the mode it was in.

    Gives the device of the model, where its input must be.
    """
    import torch

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield next((p.device for p in model.parameters()), torch.device("cpu"))
    finally:
        for module, training in modes:
            module.training = training
