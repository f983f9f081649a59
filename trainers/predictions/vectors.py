"""The vectors in which strategies keep parameters and gradients, worked out from a profile of the model.

A vector of gradients has, behind them, a mark for each parameter (see `FlatGradients`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ringsim.training_step import ELEMENT_BYTES, StepProfile


class ModelParts(NamedTuple):
    """Facts of the parameters that are trained, in their order.

    shapes: of each, which "powersgd" needs. layers: the numbers of those that are gathered together, which "zero3"
    needs, and rest: of those that belong to no layer.
    """

    shapes: Sequence[tuple[int, ...]] = ()
    layers: Sequence[Sequence[int]] = ()
    rest: Sequence[int] = ()


NO_PARTS = ModelParts()


class Vector(NamedTuple):
    """Gradients of one dtype, one after the other."""

    elements: int
    element_bytes: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all of it."""
        return self.elements * self.element_bytes


def vectors_of(profile: StepProfile, multiple_of: int = 1, marked: bool = True) -> list[Vector]:
    """Return one for each dtype, padded to a multiple of that many elements."""
    elements: dict[str, int] = {}
    for parameter in profile.parameters:
        elements[parameter.dtype] = elements.get(parameter.dtype, 0) + parameter.elements + marked
    return [Vector(padded(count, multiple_of), ELEMENT_BYTES[dtype]) for dtype, count in elements.items()]


def padded(count: int, multiple_of: int) -> int:
    """Return the next multiple."""
    return math.ceil(count / multiple_of) * multiple_of


def layer_vectors(profile: StepProfile, num_ranks: int, parts: ModelParts) -> list[list[Vector]]:
    """Return for each layer, and then the rest if there is any, a vector for each dtype, padded for that many ranks.

    Raises ValueError if a parameter is in none of them, or in several.
    """
    layers = [*parts.layers, *([parts.rest] if parts.rest else [])]
    numbers = sorted(number for layer in layers for number in layer)
    if numbers != list(range(len(profile.parameters))):
        raise ValueError(f"{len(numbers)} parameters in layers: must be all {len(profile.parameters)}, once")
    held = (replace(profile, parameters=tuple(profile.parameters[number] for number in layer)) for layer in layers)
    return [vectors_of(of_layer, num_ranks, marked=False) for of_layer in held]


def fsdp_vectors(profile: StepProfile, num_ranks: int, parts: ModelParts) -> list[list[Vector]]:
    """Like `layer_vectors`, but every parameter is padded so that all ranks have as many of its rows.

    Raises ValueError, too, if `parts` has not the shapes of all parameters.
    """
    if len(parts.shapes) != len(profile.parameters):
        raise ValueError(f"fsdp: {len(parts.shapes)} shapes of parameters: must be {len(profile.parameters)}")
    rows = [shape[0] if shape else 1 for shape in parts.shapes]
    padded_parameters = tuple(
        replace(parameter, elements=parameter.elements // max(count, 1) * padded(count, num_ranks))
        for parameter, count in zip(profile.parameters, rows, strict=True)
    )
    return layer_vectors(replace(profile, parameters=padded_parameters), num_ranks, parts)


class PowerSgdParts(NamedTuple):
    """vectors: for each dtype one of left factors and all that is sent as it is, and one of right factors.

    compressed_bytes: of the gradients that are sent as factors.
    """

    vectors: list[tuple[Vector, Vector]]
    compressed_bytes: int


def powersgd_parts(profile: StepProfile, rank: int, shapes: Sequence[tuple[int, ...]]) -> PowerSgdParts:
    """Return the vectors that powersgd makes of these shapes. Raises ValueError for another number of them."""
    if len(shapes) != len(profile.parameters):
        raise ValueError(f"powersgd: {len(shapes)} shapes of parameters: must be {len(profile.parameters)}")
    elements: dict[str, list[int]] = {}
    compressed_bytes = 0
    for parameter, shape in zip(profile.parameters, shapes, strict=True):
        count, rows = parameter.elements, shape[0] if len(shape) > 1 else 0
        is_compressed = rows > 0 and (rows + count // rows) * rank < count
        lefts, rights = (rows * rank, count // rows * rank) if is_compressed else (count, 0)
        both = elements.setdefault(parameter.dtype, [0, 0])
        both[0] += lefts + 1  # the mark
        both[1] += rights
        compressed_bytes += is_compressed * parameter.size_bytes
    vectors = [
        (Vector(lefts, ELEMENT_BYTES[dtype]), Vector(rights, ELEMENT_BYTES[dtype]))
        for dtype, (lefts, rights) in elements.items()
    ]
    return PowerSgdParts(vectors, compressed_bytes)
