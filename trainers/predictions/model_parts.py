"""`ModelParts`: what some predictions need to know of a model, beside what a profile of its steps has."""

from collections.abc import Sequence
from typing import NamedTuple


class ModelParts(NamedTuple):
    """Of the parameters that are trained, in their order.

    shapes: of each, which "powersgd" needs. layers: the numbers of those that are gathered together, which "zero3"
    needs, and rest: of those that belong to no layer.
    """

    shapes: Sequence[tuple[int, ...]] = ()
    layers: Sequence[Sequence[int]] = ()
    rest: Sequence[int] = ()
