"""`CollectiveTimes`: how long one collective took, each time that it was done; and percentiles of such times."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from ringsim.files import check, values
from ringsim.schedule import Collective

TORCH = "dist"  # in place of an algorithm: torch.distributed's own collective
RAW_SOCKETS = "raw_sockets"  # likewise: the bytes of the ring over bare TCP, nothing reduced
PLAIN_RING = "plain_ring"  # likewise: a ring of isend and irecv, written by hand
OPENMPI = "openmpi"  # likewise: Open MPI's own collective
# Operations that benchmarks time beside the collectives of `Collective`: no schedule of ours says them.
SENDRECV = "sendrecv"  # every rank sends to its right neighbour while it receives from its left one
PT2PT_LATENCY = "pt2pt_latency"  # half a round trip between two ranks
PT2PT_BANDWIDTH = "pt2pt_bandwidth"  # one of many messages on the way from one rank to another


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """The times of one collective of one size, done many times by one competitor.

    algorithm: one of `ringsim algorithms`, a user's own, TORCH, RAW_SOCKETS, PLAIN_RING or OPENMPI.
    size_bytes: of the whole tensor: the input of reduce_scatter, the output of all_gather.
    dtype, op: by torch's names, such as float32 and sum; op is none where nothing is reduced.
    in_place: False if the result went to another memory than the input, copying included.
    wrong: elements, over all ranks, that were not what they must be; None if there is nothing to look at.
    calls: how many of them one after the other make an iteration.
    times_s: of each iteration, the slowest rank's time from its start to its end, over `calls`.
    arrival_skew_s: of each iteration, how long the slowest rank was at it before the last rank began, over `calls`: so
    long it may have waited for a peer and not for the collective. Only right where all ranks have one clock, as on one
    host. In files its key is "late_s".
    positions: of each iteration, how many competitors had their turn in it before.
    rank_medians_s: of each rank, the median of its own times.
    """

    collective: Collective
    algorithm: values.Name
    size_bytes: values.Positive
    dtype: values.Name
    op: values.Name
    num_ranks: int
    in_place: bool
    wrong: int | None
    calls: values.Positive
    times_s: tuple[values.Duration, ...]
    arrival_skew_s: tuple[Annotated[float, values.seconds(0)], ...] = field(metadata={"key": "late_s"})
    positions: tuple[int, ...]
    rank_medians_s: tuple[values.Duration, ...]

    def __post_init__(self) -> None:
        check(self, not_empty=("times_s",))
        for name, column in (("positions", self.positions), ("late_s", self.arrival_skew_s)):
            if len(column) != len(self.times_s):
                raise ValueError(f"{len(column)} {name} for {len(self.times_s)} times_s: must be as many")
        if len(self.rank_medians_s) != self.num_ranks:
            raise ValueError(f"{len(self.rank_medians_s)} rank_medians_s for {self.num_ranks} ranks: one for each")

    @property
    def median_s(self) -> float:
        """The median of `times_s`, which other work on the host disturbs least."""
        return statistics.median(self.times_s)

    @property
    def together_s(self) -> tuple[float, ...]:
        """The times from when the last rank began, `times_s` less the arrival skew, so without waiting for it."""
        return tuple(
            time_s - skew_s if skew_s < time_s else time_s
            for time_s, skew_s in zip(self.times_s, self.arrival_skew_s, strict=True)
        )

    @property
    def p10_p90_s(self) -> tuple[float, float]:
        """The 10th and the 90th percentile of `times_s`."""
        return p10_p90(self.times_s)

    @property
    def cell(self) -> tuple[Collective, int, str, str, int, bool]:
        """The task that all competitors were given alike: the times of one cell can be compared."""
        return self.collective, self.size_bytes, self.dtype, self.op, self.num_ranks, self.in_place


def p10_p90(times_s: Sequence[float]) -> tuple[float, float]:
    """Return the 10th and the 90th percentile, between which lie four runs of five, as np.percentile interpolates.

    Raises ValueError if there is no time at all.
    """
    if not len(times_s):
        raise ValueError("no times: at least one is needed")
    low, high = np.percentile(times_s, (10, 90)).tolist()
    return low, high


def p95(errors: Sequence[float]) -> float:
    """Return the 95th percentile: the smallest of the errors that at least 95 % of them do not exceed.

    It is not interpolated, so of fewer than 20 errors it is the largest: a table that says "95 % below" must not show
    less. Raises ValueError if there is no error at all.
    """
    if not len(errors):
        raise ValueError("no errors: at least one is needed")
    return float(np.percentile(errors, 95, method="inverted_cdf"))
