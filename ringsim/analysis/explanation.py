"""`Explanation`: a collective's critical path, and the use of its ranks and links."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim import simulation
from ringsim.analysis.critical_path import CriticalPath, critical_path
from ringsim.analysis.faults import Activities, BlockedRun, activities, find_blocked, last_active_s
from ringsim.limits import EXPLAINED_TRANSFERS, free_bytes
from ringsim.network import NONE, Floats, Ints, Network, Topology, connection_ends, connection_keys
from ringsim.schedule import Bools, Schedule, dependencies, stable_order
from ringsim.units import ROUNDING

_BYTES_PER_TRANSFER = 500  # of memory, at most

Ranks = npt.NDArray[np.signedinteger]  # a timeline's columns have 32 bits, indices 64


@dataclass(frozen=True, slots=True, eq=False)
class RankUsage:
    """The activities of each rank until `until_s`, (num_ranks,) each; endless activities are not counted.

    sending_s, applying_s: with at least one transfer on a link, or being added or copied.
    busy_s: sending or applying. waiting_s: neither. last_active_s: end of the last activity; 0 if there is none.
    """

    until_s: float
    sending_s: Floats
    applying_s: Floats
    busy_s: Floats
    waiting_s: Floats
    last_active_s: Floats

    @property
    def busiest(self) -> int:
        return int(among_most(self.busy_s).argmax())

    @property
    def slowest(self) -> int:
        return int(among_most(self.last_active_s).argmax())


@dataclass(frozen=True, slots=True, eq=False)
class LinkUsage:
    """The utilisation of each link, (num_links,): bytes moved over capacity times time.

    Links are the topology's resources, then the pairs of ranks with their own limit and without resources.
    """

    resource_names: tuple[str, ...]
    src: Ints
    dst: Ints
    utilisation: Floats

    def name(self, link: int) -> str:
        pair = link - len(self.resource_names)
        return self.resource_names[link] if pair < 0 else f"rank{self.src[pair]} -> rank{self.dst[pair]}"

    @property
    def bottleneck(self) -> int | None:
        """The first link with the highest utilisation; None if no link is used."""
        return int(among_most(self.utilisation).argmax()) if self.utilisation.any() else None


def rank_usage(timeline: simulation.Timeline) -> RankUsage:
    """Return the use of each rank's time."""
    num_ranks, until_s = timeline.num_ranks, timeline.until_s
    sends, applies = (_union(*columns) for columns in activities(timeline))
    busy = _union(*(np.concatenate(pair) for pair in zip(sends, applies, strict=True)))
    busy_s = _total(busy, num_ranks)
    return RankUsage(
        until_s=until_s,
        sending_s=_total(sends, num_ranks),
        applying_s=_total(applies, num_ranks),
        busy_s=busy_s,
        waiting_s=np.maximum(until_s - busy_s, 0.0),
        last_active_s=last_active_s(timeline),
    )


def waiting_times(timeline: simulation.Timeline) -> tuple[Floats, ...]:
    """Return the times in which each rank neither sends nor applies, (num_gaps, 2) of begin and end.

    Waits after its last or an endless activity are left out.
    """
    rank, begin, end = (np.concatenate(columns) for columns in zip(*activities(timeline), strict=True))
    order = np.lexsort((begin, rank))
    order = order[np.isfinite(begin[order])]
    gaps = []
    for own in np.split(order, np.searchsorted(rank[order], np.arange(1, timeline.num_ranks))):
        idle_since = np.concatenate([[0.0], np.maximum.accumulate(end[own])])[:-1]
        times = np.column_stack([idle_since, begin[own]])
        gaps.append(times[times[:, 0] < times[:, 1]])
    return tuple(gaps)


def pack_rows(lane: Ranks, peer: Ranks, begin_s: Floats, end_s: Floats, num_lanes: int) -> tuple[Ints, Ints]:
    """Return the row of each activity within its lane, and the number of rows of each lane, at least 1.

    The activities of a row do not overlap; rows are as few as possible. An activity prefers its peer's row. All arrays
    are (num_activities,).
    """
    rounding = ROUNDING * float(end_s[np.isfinite(end_s)].max(initial=0.0))
    row = np.zeros(len(lane), dtype=np.int64)
    rows: list[list[tuple[float, int]]] = [[] for _ in range(num_lanes)]  # end and peer of the last one in each
    activities = list(zip(*(column.tolist() for column in (lane, peer, begin_s, end_s)), strict=True))
    # Ordered by their begin, any free row is suitable, and a new row is needed only if all are in use.
    for index in np.argsort(begin_s, kind="stable").tolist():
        number, other, begin, end = activities[index]
        own = rows[number]
        free = [place for place, (until, _) in enumerate(own) if until <= begin + rounding] or [len(own)]
        place = next((place for place in free if own[place : place + 1] and own[place][1] == other), free[0])
        own[place : place + 1] = [(end, other)]
        row[index] = place
    return row, np.array([max(len(own), 1) for own in rows], dtype=np.int64)


def pack_sends(timeline: simulation.Timeline) -> tuple[Ints, Ints]:
    """Return each send's row within its rank's lane, (num_transfers,), and the number of rows by rank."""
    return pack_rows(timeline.src, timeline.dst, timeline.start_s, timeline.sent_s, timeline.num_ranks)


def link_usage(
    timeline: simulation.Timeline, topology: Topology, chunk_bytes: Ints, channel: Ranks | None = None
) -> LinkUsage:
    """Return the utilisation of links, without messages that never left. chunk_bytes: (num_chunks,).

    channel: (num_transfers,), for switches that add or copy the messages of a channel.
    """
    on_channel = channel if channel is not None and topology.switch_of_rank is not None else np.zeros(1, np.int64)
    src, dst, channel, moved = _moved(timeline, chunk_bytes, on_channel.astype(np.int64))
    paths, resources = topology.connection_paths(src, dst, channel), topology.resources
    named = paths.resource != NONE
    used = _add_up(paths.resource[named], (paths.use_per_byte * moved[:, None])[named], len(resources.names))
    used += _on_cores(timeline, topology, chunk_bytes)
    own = ~named.any(axis=1) & np.isfinite(paths.bytes_per_s)
    capacity = np.concatenate([resources.capacity, paths.bytes_per_s[own]])
    used = np.concatenate([used, moved[own]])
    utilisation = np.zeros(len(used))
    until_s = timeline.until_s
    if until_s > 0:
        burst = np.concatenate([resources.burst_bytes, np.zeros(np.count_nonzero(own))])
        np.divide(used, capacity * until_s + burst, out=utilisation, where=capacity > 0)
    return LinkUsage(resources.names, src[own], dst[own], utilisation)


def _union(rank: Ranks, begin: Floats, end: Floats) -> Activities:
    counts: Bools = (begin < end) & np.isfinite(end)
    rank, begin, end = rank[counts], begin[counts], end[counts]
    order = stable_order(rank)
    rank, begin, end = rank[order], begin[order], end[order]
    if ((rank[1:] != rank[:-1]) | (begin[1:] >= end[:-1])).all():  # as they mostly are, and much faster than to sort
        return rank, begin, end
    times = np.concatenate([begin, end])
    order = np.argsort(times)
    # Sorting by time and then stably by rank is faster than NumPy's sort by two keys.
    order = order[stable_order(np.concatenate([rank, rank])[order])]
    change = np.where(order < len(rank), 1, -1)
    num_open = np.cumsum(change)
    opens, closes = order[(change == 1) & (num_open == 1)], order[(change == -1) & (num_open == 0)]
    return rank[opens], times[opens], times[closes]


def _total(intervals: Activities, num_ranks: int) -> Floats:
    rank, begin, end = intervals
    return _add_up(rank, end - begin, num_ranks)


def _moved(timeline: simulation.Timeline, chunk_bytes: Ints, channel: Ints) -> tuple[Ints, Ints, Ints, Floats]:
    left = np.isfinite(timeline.sent_s)
    sizes = np.where(left, chunk_bytes[timeline.chunk], 0)
    num_ranks = timeline.num_ranks
    keys = connection_keys(timeline.src, timeline.dst, channel, num_ranks)
    key, which = np.unique(keys, return_inverse=True)
    return *connection_ends(key, num_ranks), _add_up(which, sizes, len(key))


def _on_cores(timeline: simulation.Timeline, topology: Topology, chunk_bytes: Ints) -> Floats:
    cores, used = topology.processors.cores, np.zeros(len(topology.resources.names))
    if not (cores != NONE).any():
        return used
    costs, row = simulation.TransferCosts(timeline, topology, chunk_bytes), np.arange(len(timeline))
    ends = (
        (timeline.src, timeline.sent_s, costs.overhead_s(row)),
        (timeline.dst, timeline.applied_s, costs.apply_s(row)),
    )
    for rank, done_s, work_s in ends:
        on = (cores[rank] != NONE) & np.isfinite(done_s)
        used += _add_up(cores[rank[on]], work_s[on], len(used))
    return used


def _add_up(index: Ranks, amount: Floats | Ints, length: int) -> Floats:
    return np.bincount(index, weights=amount, minlength=length).astype(np.float64)


def among_most(values: Floats) -> Bools:
    """Return which values equal the largest, except for rounding."""
    return np.asarray(values >= values.max(initial=0.0) * (1 - ROUNDING))


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """The parts of a run; `path` is None if the run never finishes, `blocked` is None if it finishes."""

    timeline: simulation.Timeline
    ranks: RankUsage
    links: LinkUsage
    path: CriticalPath | None
    blocked: BlockedRun | None

    def __repr__(self) -> str:
        if self.blocked:
            return f"Explanation({self.timeline!r}, {self.blocked.num_unfinished} transfers never happen)"
        shares = self.path.shares() if self.path and self.path.time_s else {}
        path = "".join(f", {kind.value} {share:.0%}" for kind, share in list(shares.items())[:2])
        limit = "" if self.links.bottleneck is None else f", bottleneck {self.links.name(self.links.bottleneck)}"
        return f"Explanation({self.timeline!r}{path}{limit})"


def why_not_explained(schedule: Schedule) -> str | None:
    """Return why `schedule` is too large to examine; None if it is not."""
    num_transfers = schedule.num_transfers
    if num_transfers > EXPLAINED_TRANSFERS:
        return f"{num_transfers:,} transfers: at most {EXPLAINED_TRANSFERS:,} are examined one by one"
    if num_transfers * _BYTES_PER_TRANSFER > free_bytes():
        return f"too little free memory to examine {num_transfers:,} transfers one by one"
    return None


def explain(
    schedule: Schedule,
    network: Network,
    size_bytes: int,
    on_progress: simulation.OnProgress = simulation.ignore_progress,
    *,
    runtime: simulation.Runtime = simulation.RULE,
) -> Explanation:
    """Simulate a collective, with the arguments and errors of `simulate`, and examine where its time goes.

    >>> from ringsim import explain, load_network, ring_all_reduce
    >>> explanation = explain(ring_all_reduce(4), load_network("gbe"), 2**20)
    >>> explanation.path.num_transfers
    6
    """
    timeline = simulation.simulate(schedule, network, size_bytes, runtime=runtime, on_progress=on_progress)
    topology = simulation.with_in_network_reduction([schedule], runtime.topology(network, schedule.num_ranks))
    chunk_bytes = schedule.chunk_bytes(size_bytes)
    blocked, rows = find_blocked(timeline, topology), dependencies(schedule, in_order=runtime.in_order)
    return Explanation(
        timeline=timeline,
        ranks=rank_usage(timeline),
        links=link_usage(timeline, topology, chunk_bytes, rows.channel),
        path=None if blocked else critical_path(timeline, rows, topology, chunk_bytes),
        blocked=blocked,
    )
