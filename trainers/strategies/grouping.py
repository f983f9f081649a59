"""Which parameters of a model travel together: those of a dtype, of a bucket, or of a layer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from ringsim.training_step import Parameter


def by_dtype(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters of each dtype, in the order in which they appear."""
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return list(groups.values())


def described(parameters: Iterable[nn.Parameter], ready_s: Sequence[float] | None = None) -> list[Parameter]:
    """Each by its number, size, dtype and device. ready_s: when its gradient is ready; 0 if it does not matter."""
    return [
        Parameter(str(index), p.numel(), ready_s[index] if ready_s else 0.0, _dtype(p), str(p.device))
        for index, p in enumerate(parameters)
    ]


def _dtype(parameter: nn.Parameter) -> str:
    return str(parameter.dtype).removeprefix("torch.")


CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # which have no forward pass of their own
REPEATED = (*CONTAINERS, nn.Sequential)


class LayerParts(NamedTuple):
    """A module whose forward pass needs these parameters, by their place among the model's that are trained."""

    module: nn.Module
    indices: list[int]


def layers_of(model: nn.Module) -> list[LayerParts]:
    """The members of every ModuleList, ModuleDict and Sequential, then the model itself with the rest, if there is any.

    Members of members are not layers of their own. A parameter that several layers share is one of the rest, since the
    forward pass of the model is what needs it.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    index_of = {id(parameter): index for index, parameter in enumerate(trained)}
    modules = list(dict.fromkeys(_repeated(model)))
    owned = [{index_of[id(p)] for p in module.parameters() if p.requires_grad} for module in modules]
    inside = {id(part) for module in modules for part in module.modules()}
    elsewhere = {
        index_of[id(p)]
        for module in model.modules()
        if id(module) not in inside
        for p in module.parameters(recurse=False)
        if p.requires_grad
    }
    users = [*owned, elsewhere]
    shared = {index for index in index_of.values() if sum(index in some for some in users) > 1}
    layers = [LayerParts(module, sorted(some - shared)) for module, some in zip(modules, owned, strict=True)]
    return [layer for layer in (*layers, LayerParts(model, sorted(elsewhere | shared))) if layer.indices]


def _repeated(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(module, REPEATED) and not isinstance(child, CONTAINERS):
            yield child
        else:
            yield from _repeated(child)
