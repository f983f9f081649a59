"""`evaluating`: a model as it is to be judged."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn


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
