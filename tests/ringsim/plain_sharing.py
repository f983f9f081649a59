"""Fair sharing in plain Python, one thing at a time: what the engine is held against."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ringsim.network import Floats, Ints


@dataclass(frozen=True)
class Work:
    """A work's use of each resource per unit, and how fast it could go alone."""

    uses: Mapping[int, float]
    most: float


def filled_one_at_a_time(works: Sequence[Work], capacity: Sequence[float]) -> list[float]:
    """Max-min fair rates: the one tightest limit of all, of a resource or of a work, is looked for and fixed.

    In fractions, so that nothing is lost by subtracting.
    """
    rates: dict[int, Fraction] = {}
    left = {number: Fraction(limit) for number, limit in enumerate(capacity) if limit != float("inf")}
    while len(rates) < len(works):
        rising = [number for number in range(len(works)) if number not in rates]
        limits = [(Fraction(works[number].most), [number]) for number in rising]
        for resource, amount in left.items():
            users = [number for number in rising if works[number].uses.get(resource)]
            if users:
                limits.append((amount / sum(Fraction(works[number].uses[resource]) for number in users), users))
        rate, fixed = min(limits)
        for number in fixed:
            rates[number] = rate
            for resource, use in works[number].uses.items():
                if resource in left:
                    left[resource] -= rate * Fraction(use)
    return [float(rates[number]) for number in range(len(works))]


def columns_of(works: Sequence[Work], capacity: Sequence[float]) -> tuple[Ints, Floats, Floats, Floats]:
    """The arguments of `fair_rates`; the last resource pads, and has no limit."""
    width = max((len(work.uses) for work in works), default=0) + 1
    resource = np.full((width, len(works)), len(capacity))
    use = np.zeros((width, len(works)))
    for column, work in enumerate(works):
        for row, (number, per_unit) in enumerate(work.uses.items()):
            resource[row, column], use[row, column] = number, per_unit
    most = np.array([work.most for work in works], dtype=np.float64)
    return resource, use, most, np.array([*capacity, math.inf])
