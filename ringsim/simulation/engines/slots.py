"""`Slots`: where the work of a schedule that shares something goes on, and on which transfer's behalf."""

from dataclasses import dataclass

import numpy as np

from ringsim.network import NONE, Floats, Topology
from ringsim.schedule import NO_ROW, Dependencies, Rows
from ringsim.simulation.engines.activities import Activities
from ringsim.simulation.engines.waiting import Bools, Ints

UNLIMITED = 1e30  # bytes a second; rates are finite


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """The pairs of ranks that send, and what limits the messages of each; (num_pairs,) unless said otherwise.

    most: bytes a second, where nothing is shared.
    resource, use: (width, num_pairs), of what is shared.
    """

    src: Ints
    latency_s: Floats
    most: Floats
    resource: Ints
    use: Floats


def ends_of_links(rows: Dependencies) -> tuple[Ints, Ints]:
    """The src and dst of the links of all transfers, in the order of their numbers in `rows.link`."""
    first = rows.before_on_link == NO_ROW
    order = np.argsort(rows.link[first])
    return rows.src[first][order].astype(np.int64), rows.dst[first][order].astype(np.int64)


def links_of(src: Ints, dst: Ints, topology: Topology) -> Links:
    """The links between these pairs of ranks, in their order."""
    paths, capacity = topology.paths(src, dst), topology.resources.capacity
    paths.check()
    named = paths.resource != NONE
    shared = named.copy()
    shared[named] = _is_shared(topology, paths.resource[named])[paths.resource[named]]
    private = named & ~shared
    alone = np.full(named.shape, np.inf)
    alone[private] = capacity[paths.resource[private]] / paths.use_per_byte[private]
    return Links(
        src=src,
        latency_s=paths.latency_s,
        most=np.minimum(paths.bytes_per_s, alone.min(axis=1, initial=np.inf)),
        resource=np.where(shared, paths.resource, 0).T,
        use=np.where(shared, paths.use_per_byte, 0.0).T,
    )


def _is_shared(topology: Topology, resource: Ints) -> Bools:
    """Of each resource, whether more than one link or rank uses it, or time does not treat it all alike."""
    cores = topology.processors.cores
    users = np.bincount(resource, minlength=len(topology.resources.names))
    users += np.bincount(cores[cores != NONE], minlength=len(users))
    shared: Bools = (users > 1) | np.isfinite(topology.resources.fails_at_s)
    return shared


class Slots:
    """Where work that shares something goes on.

    A slot for each link; where cores are scarce also one for its overheads, and one for what each rank applies.
    num_timers: slots more, the last ones, in which nothing is done but waiting for a moment.
    """

    def __init__(self, links: Links, topology: Topology, num_timers: int = 0) -> None:
        self._num_links = len(links.src)
        self._link_src = links.src
        # A core's time counts as the bytes that it could have copied: so computing and copying get equal parts of it.
        copies = topology.processors.copy_bytes_per_s
        self._worth = np.where(np.isfinite(copies), copies, 1.0)
        self.shares: Bools = np.any(links.use > 0, axis=0)
        self.activities = self._all_slots(links, topology, num_timers)
        self.first_timer = self.activities.num_slots - num_timers
        self._row = np.full(self.activities.num_slots, NO_ROW, dtype=np.int64)

    def _all_slots(self, links: Links, topology: Topology, num_timers: int) -> Activities:
        cores = topology.processors.cores
        scarce = bool((cores != NONE).any())
        rank = np.concatenate([links.src, np.arange(topology.num_ranks)]) if scarce else np.empty(0, dtype=np.int64)
        width, first = max(len(links.resource), 1), self._num_links
        resource = np.zeros((width, first + len(rank) + num_timers), dtype=np.int64)
        use = np.zeros(resource.shape)
        resource[: len(links.resource), :first] = links.resource
        use[: len(links.use), :first] = links.use
        on_cores = slice(first, first + len(rank))
        resource[0, on_cores] = cores[rank]
        use[0, on_cores] = np.where(cores[rank] != NONE, 1 / self._worth[rank], 0.0)
        most = np.concatenate([np.minimum(links.most, UNLIMITED), self._worth[rank], np.ones(num_timers)])
        return Activities(resource, use, most, topology.resources)

    def begin_sending(self, link: Rows, row: Ints, from_s: Floats, lead_s: Floats, amount: Floats) -> None:
        self._begin(link, row, from_s, lead_s, amount)

    def begin_overhead(self, link: Rows, row: Ints, from_s: Floats, work_s: Floats) -> None:
        self._begin(self._num_links + link, row, from_s, 0.0, work_s * self._worth[self._link_src[link]])

    def begin_applying(self, rank: Rows, row: Ints, from_s: Floats, work_s: Floats) -> None:
        self._begin(2 * self._num_links + rank, row, from_s, 0.0, work_s * self._worth[rank])

    def begin_waiting(self, timer: int, until_s: float) -> None:
        """Of the timers, counted from 0, one that ends at that moment."""
        slot = np.array([self.first_timer + timer])
        self.activities.begin(slot, np.array([until_s]), 0.0, np.zeros(1))

    def _begin(self, slot: Rows, row: Ints, from_s: Floats, lead_s: Floats | float, amount: Floats) -> None:
        self._row[slot] = row
        self.activities.begin(slot, from_s, lead_s, amount)

    def ended(self, slot: Ints) -> tuple[Ints, Bools, Bools, Bools]:
        """The rows whose work was in these slots, and which of them were sent, were overheads, were applied."""
        kind = slot // max(self._num_links, 1)
        return self._row[slot], kind == 0, kind == 1, kind >= 2
