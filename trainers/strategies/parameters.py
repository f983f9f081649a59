"""A model's parameters as `ringsim.training_step` describes them."""

from collections.abc import Iterable, Sequence

from torch import nn

from ringsim.training_step import Parameter


def described(parameters: Iterable[nn.Parameter], ready_s: Sequence[float] | None = None) -> list[Parameter]:
    """Each by its number, size, dtype and device. ready_s: when its gradient is ready; 0 if it does not matter."""
    return [
        Parameter(str(index), p.numel(), ready_s[index] if ready_s else 0.0, _dtype(p), str(p.device))
        for index, p in enumerate(parameters)
    ]


def _dtype(parameter: nn.Parameter) -> str:
    return str(parameter.dtype).removeprefix("torch.")
