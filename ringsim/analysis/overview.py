"""`Overview`: everything that the pictures of one schedule show, worked out before anything is drawn."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ringsim.analysis.chunk_states import ChunkStates
from ringsim.analysis.holdings import walk_holdings
from ringsim.analysis.phases import SchedulePhase, find_phases
from ringsim.analysis.stall import Stall, find_stall
from ringsim.analysis.usage import waiting_times
from ringsim.network import AnyNetwork, Network
from ringsim.schedule import Bools, Collective, Counts, Ints, Schedule
from ringsim.simulation import Seconds, Timeline, closed_form_of, predict_time, simulate
from ringsim.units import format_size, format_time

MAX_RANKS = 128  # more can neither be told apart in a picture nor be counted in little memory
MAX_PHASES = 4  # with names above the lanes
_SMALLEST_LOG2, _LARGEST_LOG2 = 6, 30  # 64 B .. 1 GiB


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """One schedule on one network: when its transfers run, what the ranks hold, and how size matters.

    waiting_s: per rank, the (begin, end) of every time in which it neither sends nor reduces, up to its last
    activity; each of shape (num_gaps, 2).
    states, holdings, finished: as `ChunkStates` has them; of a run that never finishes, only what was applied.
    times_s: simulated, one for each of `sizes_bytes`; `closed_form_s` likewise, None if there is no formula. Both end
    before the first size with which the run never finishes.
    floor_s: the time at size 0, which is latency and overhead alone.
    crossover_bytes: the smallest size that takes twice `floor_s`: below it latency is most of the time, above
    it bandwidth and reduction are. None if the floor is 0 or no simulated size takes that long.
    phases: reduce-scatter and all-gather, where the algorithm has such. stall: what hangs; None if the run finishes.
    """

    collective: Collective
    algorithm: str
    num_ranks: int
    num_chunks: int
    num_steps: int
    network: AnyNetwork
    size_bytes: int
    timeline: Timeline
    waiting_s: tuple[Seconds, ...]
    states: Ints
    holdings: Counts
    finished: Bools
    sizes_bytes: Ints
    times_s: Seconds
    closed_form_s: Seconds | None
    floor_s: float
    crossover_bytes: int | None
    phases: tuple[SchedulePhase, ...]
    stall: Stall | None

    def __repr__(self) -> str:
        time = "never finishes" if self.stall else format_time(self.timeline.time_s)
        run = f"{self.collective.value} {self.algorithm} over {self.num_ranks} ranks"
        return f"Overview({run}, {format_size(self.size_bytes)}, {time})"


def check_few_ranks(num_ranks: int) -> None:
    """Raises ValueError for more ranks than a picture shows."""
    if num_ranks > MAX_RANKS:
        raise ValueError(f"num_ranks {num_ranks}: a picture shows at most {MAX_RANKS} ranks")


def make_overview(schedule: Schedule, network: AnyNetwork, size_bytes: int) -> Overview:
    """The overview of `schedule` on `network`, its timeline and holdings at `size_bytes`.

    Raises ValueError for a negative size or more than MAX_RANKS ranks.

        >>> from ringsim import Network, make_overview, ring_all_reduce
        >>> make_overview(ring_all_reduce(4), Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9), 2**20).floor_s
        6e-05
    """
    check_few_ranks(schedule.num_ranks)
    timeline = simulate(schedule, network, size_bytes)
    held = ChunkStates.of(schedule, timeline)
    sizes, times = _times_around(schedule, network, size_bytes)
    floor = predict_time(schedule, network, 0)
    return Overview(
        collective=schedule.collective,
        algorithm=schedule.algorithm,
        num_ranks=schedule.num_ranks,
        num_chunks=schedule.num_chunks,
        num_steps=schedule.num_steps,
        network=network,
        size_bytes=size_bytes,
        timeline=timeline,
        waiting_s=waiting_times(timeline),
        states=held.states,
        holdings=held.holdings,
        finished=held.finished,
        sizes_bytes=sizes,
        times_s=times,
        closed_form_s=_closed_form(schedule, network, sizes),
        floor_s=floor,
        crossover_bytes=_crossover(schedule, network, floor, sizes, times),
        phases=_phases(schedule),
        stall=find_stall(timeline, network.topology(schedule.num_ranks)),
    )


def _phases(schedule: Schedule) -> tuple[SchedulePhase, ...]:
    """The phases, if there are several and not so many that their names would not be read."""
    phases = find_phases(schedule, list(walk_holdings(schedule)))
    return phases if 1 < len(phases) <= MAX_PHASES else ()


def _times_around(schedule: Schedule, network: AnyNetwork, size_bytes: int) -> tuple[Ints, Seconds]:
    """Powers of two, far enough to have `size_bytes` among them, and their times; up to the first that never ends."""
    sizes = np.int64(2) ** np.arange(_SMALLEST_LOG2, max(_LARGEST_LOG2, size_bytes.bit_length()) + 1)
    times: list[float] = []
    for size in sizes.tolist():
        time_s = predict_time(schedule, network, size)
        if not np.isfinite(time_s):
            break
        times.append(time_s)
    return sizes[: len(times)], np.array(times)


def _closed_form(schedule: Schedule, network: AnyNetwork, sizes: Ints) -> Seconds | None:
    if not isinstance(network, Network):
        return None
    times = [closed_form_of(schedule, network, size) for size in sizes.tolist()]
    finite = [time for time in times if time is not None]
    return np.array(finite) if len(finite) == len(times) else None


def _crossover(schedule: Schedule, network: AnyNetwork, floor: float, sizes: Ints, times: Seconds) -> int | None:
    beyond = np.flatnonzero(times >= 2 * floor)
    if floor in (0, np.inf) or not len(beyond):
        return None
    # Between two simulated sizes the time may have a kink, where a pipeline fills: so search, not interpolate.
    first = int(beyond[0])
    low, high = int(sizes[first - 1]) if first else 0, int(sizes[first])
    return bisect_left(range(high), 2 * floor, lo=low, key=lambda size: predict_time(schedule, network, size))
