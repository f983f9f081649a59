"""`RunView`: one run of a schedule, as pictures, pages and animations show it."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

import math
from bisect import bisect_left
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from ringsim.analysis import contributions
from ringsim.analysis.faults import BlockedRun, SlowParts, find_blocked, find_slow_parts
from ringsim.analysis.graph_layout import GraphLayout, lay_out_graph
from ringsim.analysis.walkthrough import describe_phases
from ringsim.network import Network, Topology
from ringsim.schedule import Ints, Schedule
from ringsim.simulation import Seconds, Timeline, closed_form_of, predict_time, simulate
from ringsim.units import format_size, format_time

MAX_RANKS = 128  # more ranks are indistinguishable in a picture, and their contributions need much memory
MAX_TRANSFERS = 12_000  # about a megabyte of a page; a ring of 64 ranks has 8,064
MAX_CELLS = 2**15  # chunks of all ranks
_SMALLEST_LOG2, _LARGEST_LOG2 = 6, 30  # 64 B .. 1 GiB


class TimesBySize(NamedTuple):
    """The time of a schedule by data size.

    times_s, closed_form_s: for each of `sizes_bytes`, which end before the first size at which the run never finishes;
    None if there is no formula. floor_s: at size 0.
    crossover_bytes: smallest multiple of the number of chunks that takes twice `floor_s`, above which bandwidth and
    reduction dominate; None if there is none, or the floor is 0.
    """

    sizes_bytes: Ints
    times_s: Seconds
    closed_form_s: Seconds | None
    floor_s: float
    crossover_bytes: int | None


class RunView:
    """One run of `schedule` on `network`, which may also never finish.

    name: by default the algorithm's.
    timeline: of an already simulated or measured run; its rows may be in any order within a step.
    Raises ValueError for a negative size or more than MAX_RANKS ranks.

        >>> from ringsim import Network, RunView, ring_all_reduce
        >>> view = RunView(ring_all_reduce(4), Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9), 2**20)
        >>> view.phases[0].name, view.by_size.floor_s
        ('reduce-scatter', 6e-05)
    """

    def __init__(
        self, schedule: Schedule, network: Network, size_bytes: int, *, name: str = "", timeline: Timeline | None = None
    ) -> None:
        check_few_ranks(schedule.num_ranks)
        self.schedule, self.network, self.size_bytes = schedule, network, size_bytes
        self.name = name or schedule.algorithm
        self.timeline = timeline or simulate(schedule, network, size_bytes)

    def __repr__(self) -> str:
        time = "never finishes" if self.blocked else format_time(self.timeline.time_s)
        run = f"{self.schedule.collective.value} {self.name} over {self.schedule.num_ranks} ranks"
        return f"RunView({run}, {format_size(self.size_bytes)}, {time})"

    @cached_property
    def topology(self) -> Topology:
        return self.network.topology(self.schedule.num_ranks)

    @cached_property
    def blocked(self) -> BlockedRun | None:
        """The transfers and ranks that hang; None if the run finishes."""
        return find_blocked(self.timeline, self.topology)

    @cached_property
    def slow_parts(self) -> SlowParts:
        return find_slow_parts(self.schedule, self.network, self.size_bytes)

    @cached_property
    def host_of_rank(self) -> tuple[str, ...]:
        """The host name of each rank; empty unless ranks share hosts."""
        names, host_of_rank = contributions.hosts_of_network(self.network, self.schedule.num_ranks)
        return () if host_of_rank is None else tuple(names[host] for host in host_of_rank.tolist())

    @cached_property
    def states(self) -> contributions.ChunkStates:
        """The ranks' chunks after some of the steps, without unapplied transfers."""
        return contributions.ChunkStates.of(self.schedule, self.timeline)

    @cached_property
    def walkthrough(self) -> list[dict[str, Any]]:
        return describe_phases(self.schedule, self.network)

    @property
    def phases(self) -> tuple[contributions.SchedulePhase, ...]:
        return tuple(
            contributions.SchedulePhase(phase["name"], phase["first"], phase["last"]) for phase in self.walkthrough
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(step["sentence"] for phase in self.walkthrough for step in phase["steps"])

    @cached_property
    def graph(self) -> GraphLayout:
        return lay_out_graph(self.schedule, *contributions.hosts_of_network(self.network, self.schedule.num_ranks))

    @cached_property
    def step_end_s(self) -> Seconds:
        """The time by which each step and its predecessors are applied, or the run stopped."""
        ends, timeline = np.zeros(self.schedule.num_steps), self.timeline
        applied = np.where(np.isfinite(timeline.applied_s), timeline.applied_s, timeline.until_s)
        np.maximum.at(ends, timeline.step, applied)
        return np.maximum.accumulate(ends)

    @cached_property
    def by_size(self) -> TimesBySize:
        schedule, network = self.schedule, self.network
        sizes = np.int64(2) ** np.arange(_SMALLEST_LOG2, max(_LARGEST_LOG2, self.size_bytes.bit_length()) + 1)
        every = (predict_time(schedule, network, size) for size in sizes.tolist())
        times = list(takewhile(math.isfinite, every))
        sizes, times_s, floor_s = sizes[: len(times)], np.array(times), predict_time(schedule, network, 0)
        formula = [closed_form_of(schedule, network, size) for size in sizes.tolist()]
        closed_form_s = None if None in formula else np.array(formula, dtype=np.float64)
        return TimesBySize(sizes, times_s, closed_form_s, floor_s, self._crossover(floor_s, sizes, times_s))

    def _crossover(self, floor_s: float, sizes: Ints, times_s: Seconds) -> int | None:
        beyond = np.flatnonzero(times_s >= 2 * floor_s)
        if floor_s in (0, np.inf) or not len(beyond):
            return None
        # Search instead of interpolating: the time may have a kink between two simulated sizes, where a pipeline fills.
        # Only multiples of the number of chunks: with chunks of one size, few transfers may stand for all.
        first, num_chunks = int(beyond[0]), self.schedule.num_chunks
        low, high = int(sizes[first - 1]) if first else 0, int(sizes[first])
        multiples = range(0, high + num_chunks, num_chunks)
        time_of = partial(predict_time, self.schedule, self.network)
        place = bisect_left(multiples, 2 * floor_s, lo=low // num_chunks, key=time_of)
        return num_chunks * place


def check_few_ranks(num_ranks: int) -> None:
    """Raise ValueError for more ranks than a picture shows."""
    if num_ranks > MAX_RANKS:
        rule = f"a picture shows at most {MAX_RANKS} ranks; ringsim simulate --trace holds more"
        raise ValueError(f"num_ranks {num_ranks}: {rule}")


def check_animated(schedule: Schedule) -> None:
    """Raise ValueError for more transfers or chunks than an animation shows."""
    quantities = (
        ("transfers", schedule.num_transfers, MAX_TRANSFERS),
        ("chunks on all ranks", schedule.num_ranks * schedule.num_chunks, MAX_CELLS),
    )
    for quantity, value, limit in quantities:
        if value > limit:
            raise ValueError(
                f"{schedule} has {value:,} {quantity}: an animation shows at most {limit:,}: use fewer ranks or "
                f"segments, or ringsim simulate --trace, which holds more"
            )
