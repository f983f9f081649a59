"""`LaneFacts`: what the lanes of a run show, taken from an `Overview` or a `Timeline` alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from ringsim.algorithms import split_into_hosts, torus_of
from ringsim.analysis import Overview, SchedulePhase, Stall, find_stall, waiting_times
from ringsim.network import Landmarks, Network
from ringsim.registry import AlgorithmName, base_name
from ringsim.report.plots.lane_layout import LaneLayout
from ringsim.schedule import Bools
from ringsim.simulation import Seconds, Timeline

_STOPPED = 0.05  # of the time: how far beyond the last event that ends, what hangs is drawn
_NOTES = 0.5  # of the time: the room for what each rank waits for


def groups_of(algorithm: str, num_ranks: int) -> tuple[str, ...]:
    """Returns the names of the groups into which an algorithm itself divides the ranks; nothing if it does not."""
    base = base_name(algorithm)
    if base not in ("torus", "hierarchical"):
        return ()
    per_host = AlgorithmName.parse(algorithm).ranks_per_host
    count, size = torus_of(num_ranks) if base == "torus" else split_into_hosts(num_ranks, per_host)
    noun = "row" if base == "torus" else "host"
    return tuple(f"{noun} {rank // size}" for rank in range(num_ranks)) if min(count, size) > 1 else ()


@dataclass(frozen=True, slots=True, eq=False)
class LaneFacts:
    """A run as the lanes show it.

    waiting_s: per rank, its (begin, end) of waiting, as `Overview` has them. stall: what hangs, if the run never ends.
    slow_links: the name of the slow link on the way of each transfer, empty where there is none; (num_transfers,).
    group_of_rank: the host of each rank, or its row in a torus, (num_ranks,); empty where there are no such groups.
    """

    timeline: Timeline
    layout: LaneLayout
    waiting_s: tuple[Seconds, ...]
    phases: tuple[SchedulePhase, ...] = ()
    stall: Stall | None = None
    landmarks: Landmarks = field(default_factory=Landmarks)
    slow_links: Sequence[str] = ()
    group_of_rank: tuple[str, ...] = ()

    @classmethod
    def of_timeline(cls, timeline: Timeline) -> Self:
        """Returns what a timeline alone tells."""
        alike = Network(latency_s=0.0, bandwidth_bytes_per_s=1.0).topology(timeline.num_ranks)
        stall = find_stall(timeline, alike)  # without the names of what has failed
        layout, waiting_s = LaneLayout.of(timeline), waiting_times(timeline)
        return cls(timeline, layout, waiting_s, stall=stall, slow_links=[""] * len(timeline))

    @classmethod
    def of_overview(cls, overview: Overview) -> Self:
        """Returns what an overview tells: phases, hosts, what is slow and what hangs, besides."""
        timeline, network = overview.timeline, overview.network
        landmarks = Landmarks.of(network, overview.num_ranks)
        slow_links = [""] * len(timeline)
        if landmarks.slow_links:
            src, dst = timeline.src.astype(np.int64), timeline.dst.astype(np.int64)
            slow_links = landmarks.slow_link_of(network.topology(overview.num_ranks), src, dst)
        layout = LaneLayout.of(timeline)
        groups = landmarks.host_of_rank or groups_of(overview.algorithm, overview.num_ranks)
        return cls(timeline, layout, overview.waiting_s, overview.phases, overview.stall, landmarks, slow_links, groups)

    @property
    def num_ranks(self) -> int:
        """The number of lanes."""
        return self.timeline.num_ranks

    @property
    def until_s(self) -> float:
        """When the last thing happens that does; 1 ns if nothing takes any time in a run that hangs."""
        until_s = self.timeline.until_s
        return until_s or (1e-9 if self.stall else 0.0)

    @property
    def stopped_s(self) -> float:
        """Where what never ends is drawn to: beyond the last thing that happens."""
        return self.until_s * (1 + _STOPPED)

    @property
    def end_s(self) -> float:
        """The end of the axis."""
        return self.until_s * (1 + _STOPPED + _NOTES) if self.stall else self.until_s

    def drawn(self, times_s: Seconds) -> Seconds:
        """Returns times, those of what never happens where what hangs is drawn to."""
        return np.where(np.isfinite(times_s), times_s, self.stopped_s)

    @property
    def begun(self) -> Bools:
        """Which transfers were begun, (num_transfers,)."""
        return np.isfinite(self.timeline.start_s)

    def phase_times(self) -> list[tuple[str, float, float]]:
        """Returns name, begin and end of each phase of which anything happens."""
        times = []
        for phase in self.phases:
            rows = (self.timeline.step >= phase.first) & (self.timeline.step <= phase.last)
            rows &= self.begun
            if rows.any():
                begin_s = float(self.timeline.start_s[rows].min())
                times.append((phase.name, begin_s, float(self.drawn(self.timeline.applied_s[rows]).max())))
        return times
