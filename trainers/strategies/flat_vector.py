"""Parameters grouped by dtype or by layer; `FlatVector`: many tensors in one vector."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import nn

import collectives
from ringsim.training_step import Parameter

_Tensor = TypeVar("_Tensor", bound=torch.Tensor)


def by_dtype(tensors: Iterable[_Tensor]) -> list[list[_Tensor]]:
    """Group the tensors by dtype, in order of appearance."""
    groups: dict[torch.dtype, list[_Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


def described(parameters: Sequence[nn.Parameter], ready_s: Sequence[float] | None = None) -> list[Parameter]:
    """Describe parameters by number, size, dtype and device. ready_s: of gradients; None: 0."""
    times_s = [0.0] * len(parameters) if ready_s is None else ready_s
    return [
        Parameter(str(index), p.numel(), time_s, str(p.dtype).removeprefix("torch."), str(p.device))
        for index, (p, time_s) in enumerate(zip(parameters, times_s, strict=True))
    ]


CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # without a forward pass
REPEATED = (*CONTAINERS, nn.Sequential)


class LayerParts(NamedTuple):
    """A module, and the trained parameters that its forward pass needs."""

    module: nn.Module
    parameters: list[nn.Parameter]


def layers_of(model: nn.Module) -> list[LayerParts]:
    """Return the members of every ModuleList, ModuleDict and Sequential, then the model with the other parameters.

    Layers are not nested. A shared parameter belongs to the model.
    """
    layers = list(dict.fromkeys(_repeated(model)))
    inside = {part for layer in layers for part in layer.modules()}
    users: dict[nn.Parameter, set[nn.Module]] = {p: set() for p in model.parameters() if p.requires_grad}
    for module in (*layers, *(module for module in model.modules() if module not in inside)):
        for parameter in module.parameters(recurse=module in inside):
            if parameter.requires_grad:
                users[parameter].add(module if module in inside else model)
    parts = {module: LayerParts(module, []) for module in (*layers, model)}
    for parameter, (first, *others) in users.items():
        parts[model if others else first].parameters.append(parameter)
    return [part for part in parts.values() if part.parameters]


def _repeated(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(module, REPEATED) and not isinstance(child, CONTAINERS):
            yield child
        else:
            yield from _repeated(child)


class FlatVector:
    """A vector for tensors of one dtype and device, with `spare` more elements at its end.

    vector: (num_elements + spare + padding,), a multiple of `multiple_of`; initially zero after num_elements.
    views: each tensor's part, in its shape. group: its ranks may share the memory (see `collectives.empty`).
    """

    def __init__(
        self,
        shapes: Sequence[torch.Size],
        like: torch.Tensor,
        spare: int = 0,
        multiple_of: int = 1,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        sizes = [shape.numel() for shape in shapes]
        self.num_elements = sum(sizes)
        length = -(-(self.num_elements + spare) // multiple_of) * multiple_of
        if group is None or like.device.type != "cpu":
            self.vector = torch.empty(length, dtype=like.dtype, device=like.device)
        else:
            self.vector = collectives.empty(length, dtype=like.dtype, group=group)
        self.vector[self.num_elements :].zero_()
        pieces = self.vector[: self.num_elements].split(sizes)
        self.views = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        self.spare = self.vector[self.num_elements : self.num_elements + spare]


class FlatGradients(FlatVector):
    """Gradients of several parameters, and a mark for each: nonzero if some rank has the gradient.

    Without marks, unused parameters would get zeros, and weight decay.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], multiple_of: int = 1, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__([p.shape for p in parameters], parameters[0], len(parameters), multiple_of, group)
        self._parameters = list(parameters)
        self._absent: list[int] = []

    @torch.no_grad()
    def pack(self) -> torch.Tensor:
        """Move the gradients here, zeros for missing ones; return the vector."""
        self._absent.clear()
        self.spare.fill_(1)
        for index, (parameter, view) in enumerate(zip(self._parameters, self.views, strict=True)):
            if parameter.grad is None:
                view.zero_()
                self.spare[index] = 0
                self._absent.append(index)
            elif parameter.grad is not view:  # else the backward pass has added right here
                view.copy_(parameter.grad)
                parameter.grad = view
        return self.vector

    def unpack(self) -> None:
        """After the reduction, set gradients that only other ranks have."""
        for index in self._absent:
            if self.spare[index].item() != 0:
                self._parameters[index].grad = self.views[index]


def flat_gradients(
    parameters: Sequence[nn.Parameter], multiple_of: int = 1, group: dist.ProcessGroup | None = None
) -> list[FlatGradients]:
    """Return one `FlatGradients` per dtype."""
    return [FlatGradients(some, multiple_of, group) for some in by_dtype(parameters)]


def copy_saved(tensors: Sequence[torch.Tensor], saved: Sequence[torch.Tensor]) -> None:
    """Copy saved tensors. Raises ValueError for another number or shape, which torch might broadcast."""
    for tensor, value in zip(tensors, saved, strict=True):
        if tensor.shape != value.shape:
            raise ValueError(f"a saved tensor has shape {tuple(value.shape)}: must have shape {tuple(tensor.shape)}")
        tensor.copy_(value)
