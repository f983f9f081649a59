"""`SharedWork`: the slots in which work goes on, and the resources that they share."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.network import Floats
from ringsim.simulation.engines.fair_share import Ints


@dataclass(frozen=True, slots=True, eq=False)
class SharedWork:
    """Columns by slot and by resource; see `fair_rates` for resource, use, most and capacity.

    active, rate, round: (num_slots,), whether work goes on, how fast, and the round of `fair_rates` that gave the rate.
    num_users: (num_resources,), the slots at work that use a resource; 0 for the last, which has no limit.
    """

    resource: Ints
    use: Floats
    most: Floats
    capacity: Floats
    active: npt.NDArray[np.bool_]
    rate: Floats
    round: Ints
    num_users: Ints

    @classmethod
    def none(cls, resource: Ints, use: Floats, most: Floats, capacity: Floats) -> "SharedWork":
        """Before any work has begun."""
        num_slots = len(most)
        num_users, rounds = np.zeros(len(capacity), dtype=np.int64), np.zeros(num_slots, dtype=np.int64)
        active = np.zeros(num_slots, dtype=np.bool_)
        return cls(resource, use, most, capacity, active, np.zeros(num_slots), rounds, num_users)

    def alone_rates(self) -> Floats:
        """(num_slots,): how fast the work in each slot goes while it shares nothing."""
        limit = np.full(self.use.shape, np.inf)
        np.divide(self.capacity[self.resource], self.use, out=limit, where=self.use > 0)
        alone: Floats = np.minimum(self.most, limit.min(axis=0, initial=np.inf))
        return alone
