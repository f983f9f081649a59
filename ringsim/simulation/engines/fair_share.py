"""`fair_rates`: how fast each of several activities goes when they share resources max-min fairly."""

import numpy as np
import numpy.typing as npt

from ringsim.network import Floats

Ints = npt.NDArray[np.signedinteger]


def fair_rates(resource: Ints, use: Floats, most: Floats, capacity: Floats) -> Floats:
    """(num_activities,): the rates that are max-min fair: none can be raised but by lowering one that is no higher.

    resource: (width, num_activities), what each activity uses, nothing twice; where it uses less than `width`, the
    number of a resource without limit.
    use: (width, num_activities), of that resource's capacity for one unit of rate.
    most: (num_activities,), finite, the rate of each if nothing were shared.
    capacity: (num_resources,), of each resource; infinite: without limit.

    Raises ValueError where there are no such rates, as something is NaN.

    Water is filled in: all rates rise together until a resource is full, which fixes the rates of those that use it
    (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2, here with a use for every activity). What
    differs is that in one round all resources are dealt with that will be full before any other which their
    activities use: their rates can depend on nothing that is still to come.
    """
    return fair_rates_by_round(resource, use, most, capacity)[0]


def fair_rates_by_round(resource: Ints, use: Floats, most: Floats, capacity: Floats) -> tuple[Floats, Ints]:
    """`fair_rates`, and for each activity the round, from 0, in which its rate was fixed."""
    rates, rounds = most.copy(), np.zeros(len(most), dtype=np.int64)
    left = capacity.copy()
    rising = np.arange(len(most))
    number = 0
    while len(rising):
        demand = _sum_by(resource, use, len(left))
        level = np.full(len(left), np.inf)
        np.divide(np.maximum(left, 0.0), demand, out=level, where=demand > 0)
        seen = level[resource]  # by each activity, of each resource it uses
        lowest = np.minimum(most, seen.min(axis=0))
        later = np.zeros(len(left), dtype=np.bool_)  # where one of the activities will be held up elsewhere before
        later[resource[lowest < seen]] = True
        fixed = ((seen == lowest) & ~later[resource]).any(axis=0) | (lowest == most)
        if not fixed.any():  # no number is equal to NaN: the rates would rise for ever
            raise ValueError(
                f"activity {rising[0]}: its rate is at most {lowest[0]}, with {most[0]} if nothing were shared: "
                f"all rates, uses and capacities must be numbers, and not negative"
            )
        rates[rising[fixed]] = lowest[fixed]
        rounds[rising[fixed]] = number
        if fixed.all():
            break
        left -= _sum_by(resource[:, fixed], use[:, fixed] * lowest[fixed], len(left))
        rising, resource, use, most = rising[~fixed], resource[:, ~fixed], use[:, ~fixed], most[~fixed]
        number += 1
    return rates, rounds


def _sum_by(resource: Ints, amount: Floats, num_resources: int) -> Floats:
    total: Floats = np.bincount(resource.ravel(), weights=amount.ravel(), minlength=num_resources)  # type: ignore[assignment]  # weights make floats
    return total
