"""The algorithms of a network, their costs and lower bounds, and the rates of nccl-tests."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringsim.libraries import why_not
from ringsim.measurements import busbw_factor
from ringsim.network import Network
from ringsim.registry import ALGORITHMS
from ringsim.schedule import Collective, Schedule


def candidates(collective: Collective, networks: Iterable[Network]) -> list[str]:
    """Return the built-in algorithms that at least one network supports, see `why_not`.

    >>> from ringsim import load_network
    >>> "nvls" in candidates(Collective.ALL_REDUCE, [load_network("dgx-a100")])
    False
    """
    networks, own = list(networks), [name for owner, name in ALGORITHMS if owner is collective]
    return [name for name in own if any(not why_not(network, name) for network in networks)]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a schedule; bytes are relative to the whole tensor.

    sent: by the busiest sender. sent_bound, steps_bound: lower bounds for any algorithm.
    """

    schedule: Schedule
    num_transfers: int
    sent: float
    sent_bound: float
    steps_bound: int

    def as_dict(self) -> dict[str, Any]:
        schedule = self.schedule
        return {
            "collective": schedule.collective.value,
            "algorithm": schedule.algorithm,
            "num_chunks": schedule.num_chunks,
            "num_steps": schedule.num_steps,
            "least_steps": self.steps_bound,
            "num_transfers": self.num_transfers,
            "sent_over_size": self.sent,
            "least_sent_over_size": self.sent_bound,
        }


def cost_of(schedule: Schedule) -> Cost:
    """Return the cost of a schedule with chunks of equal size."""
    sends = np.zeros(schedule.num_ranks, dtype=np.int64)
    for step in schedule.steps:
        sends += np.bincount(step.src, minlength=schedule.num_ranks)
    bound = sent_bound(schedule.collective, schedule.num_ranks)
    sent = float(sends.max()) / schedule.num_chunks * schedule.collective.num_tensors(schedule.num_ranks)
    return Cost(schedule, int(sends.sum()), sent, bound, steps_bound(schedule.num_ranks))


def sent_bound(collective: Collective, num_ranks: int) -> float:
    """Return the least bytes that the busiest rank must send, over the size of the whole tensor.

    That is `busbw_factor` (Patarasuk and Yuan 2009); in a gather 1/n, a rank's own share.
    """
    if num_ranks == 1:
        return 0.0
    return 1 / num_ranks if collective is Collective.GATHER else busbw_factor(collective.value, num_ranks)


def steps_bound(num_ranks: int) -> int:
    """Return ceil(log2 n), the least steps of one send per rank until a rank depends on all ranks."""
    return (num_ranks - 1).bit_length()


def algbw_bytes_per_s(size_bytes: int, time_s: float) -> float | None:
    """Return whole-tensor bytes per second; None if the time is 0 or infinite."""
    return size_bytes / time_s if 0 < time_s < math.inf else None


def busbw_bytes_per_s(collective: Collective, num_ranks: int, size_bytes: int, time_s: float) -> float | None:
    """Return algbw times `busbw_factor` (nccl-tests, doc/PERFORMANCE.md); None if algbw is None."""
    algbw = algbw_bytes_per_s(size_bytes, time_s)
    return None if algbw is None else algbw * busbw_factor(collective.value, num_ranks)
