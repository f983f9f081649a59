"""`Overview`: everything that the pictures of one schedule show, worked out before anything is drawn."""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.network import AnyNetwork, Network
from ringsim.schedule import Bools, Collective, Counts, Ints, Schedule, initial_counts, replay_steps, required
from ringsim.simulation import Seconds, Timeline, closed_form_of, predict_time, simulate

MAX_RANKS = 128  # more can neither be told apart in a picture nor be counted in little memory
MAX_STATES = 15  # all of an 8-rank all-reduce; odd, so that the state half-way is always one of them
_SMALLEST_LOG2, _LARGEST_LOG2 = 6, 30  # 64 B .. 1 GiB


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """One schedule on one network: when its transfers run, what the ranks hold, and how size matters.

    waiting_s: per rank, the (begin, end) of every time in which it neither sends nor reduces, up to its last
    activity; each of shape (num_gaps, 2).
    states: how many steps have been run in each state that is kept, shape (num_states,): all of them if there
    are at most MAX_STATES, else evenly chosen, the first and the last included.
    holdings: the counts in those states, shape (num_states, rank, chunk, contributor).
    finished: where a rank holds all that the collective asks of a chunk, shape (num_states, rank, chunk).
    times_s: simulated, one for each of `sizes_bytes`; `closed_form_s` likewise, None if there is no formula.
    floor_s: the time at size 0, which is latency and overhead alone.
    crossover_bytes: the smallest size that takes twice `floor_s`: below it latency is most of the time, above
    it bandwidth and reduction are. None if the floor is 0 or no simulated size takes that long.
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


def make_overview(schedule: Schedule, network: AnyNetwork, size_bytes: int) -> Overview:
    """The overview of `schedule` on `network`, its timeline and holdings at `size_bytes`.

    Raises ValueError for a negative size, more than MAX_RANKS ranks, or a run that never finishes.

        >>> from ringsim import Network, make_overview, ring_all_reduce
        >>> make_overview(ring_all_reduce(4), Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9), 2**20).floor_s
        6e-05
    """
    if schedule.num_ranks > MAX_RANKS:
        raise ValueError(f"num_ranks {schedule.num_ranks}: a picture shows at most {MAX_RANKS} ranks")
    timeline = simulate(schedule, network, size_bytes)
    if not np.isfinite(timeline.time_s):
        raise ValueError(f"{schedule} never finishes, as something fails: ringsim simulate says what")
    states, holdings = _holdings(schedule)
    counts, _ = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)
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
        waiting_s=tuple(_waiting(timeline, rank) for rank in range(schedule.num_ranks)),
        states=states,
        holdings=holdings,
        finished=(holdings == counts).all(axis=-1),
        sizes_bytes=sizes,
        times_s=times,
        closed_form_s=_closed_form(schedule, network, sizes),
        floor_s=floor,
        crossover_bytes=_crossover(schedule, network, floor, sizes, times),
    )


def _holdings(schedule: Schedule) -> tuple[Ints, Counts]:
    """The states that are kept, and the counts in each."""
    num_states = schedule.num_steps + 1
    states = np.unique(np.linspace(0, schedule.num_steps, min(num_states, MAX_STATES)).round().astype(np.int64))
    counts = initial_counts(schedule.collective, schedule.num_ranks, schedule.num_chunks)
    wanted = set(states.tolist())
    kept = [counts.copy()]
    # One row of counts is one element of the buffer: what moves data also moves the counts of it.
    for index in replay_steps(schedule, list(counts)):
        if index + 1 in wanted:
            kept.append(counts.copy())
    return states, np.stack(kept)


def _waiting(timeline: Timeline, rank: int) -> Seconds:
    sends, receives = timeline.src == rank, timeline.dst == rank
    begin = np.concatenate([timeline.start_s[sends], timeline.apply_s[receives]])
    end = np.concatenate([timeline.left_s[sends], timeline.applied_s[receives]])
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    idle_since = np.concatenate([[0.0], np.maximum.accumulate(end[order])])[:-1]
    gaps: npt.NDArray[np.bool_] = begin > idle_since
    return np.column_stack([idle_since[gaps], begin[gaps]])


def _times_around(schedule: Schedule, network: AnyNetwork, size_bytes: int) -> tuple[Ints, Seconds]:
    """Powers of two, far enough to have `size_bytes` among them, and their times; up to the first that never ends."""
    sizes = np.int64(2) ** np.arange(_SMALLEST_LOG2, max(_LARGEST_LOG2, size_bytes.bit_length()) + 1)
    times: list[float] = []
    for size in sizes.tolist():
        time_s = predict_time(schedule, network, size)
        if not np.isfinite(time_s):
            break
        times.append(time_s)
    if not times:
        raise ValueError(f"{schedule} never finishes with {sizes[0]} bytes, as something fails")
    return sizes[: len(times)], np.array(times)


def _closed_form(schedule: Schedule, network: AnyNetwork, sizes: Ints) -> Seconds | None:
    if not isinstance(network, Network):
        return None
    times = [closed_form_of(schedule, network, size) for size in sizes.tolist()]
    finite = [time for time in times if time is not None]
    return np.array(finite) if len(finite) == len(times) else None


def _crossover(schedule: Schedule, network: AnyNetwork, floor: float, sizes: Ints, times: Seconds) -> int | None:
    beyond = np.flatnonzero(times >= 2 * floor)
    if floor == 0 or not len(beyond):
        return None
    # Between two simulated sizes the time may have a kink, where a pipeline fills: so search, not interpolate.
    first = int(beyond[0])
    low, high = int(sizes[first - 1]) if first else 0, int(sizes[first])
    return bisect_left(range(high), 2 * floor, lo=low, key=lambda size: predict_time(schedule, network, size))
