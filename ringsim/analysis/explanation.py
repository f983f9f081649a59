"""`Explanation`: where the time of one simulated collective goes."""

from dataclasses import dataclass

from ringsim.analysis.critical_path import CriticalPath, critical_path
from ringsim.analysis.stall import Stall, find_stall
from ringsim.analysis.usage import LinkUsage, RankUsage, link_usage, rank_usage
from ringsim.limits import free_bytes
from ringsim.network import AnyNetwork
from ringsim.schedule import Schedule, dependencies
from ringsim.simulation import RULE, OnProgress, Runtime, Timeline, ignore_progress, simulate, with_in_network_reduction

MAX_TRANSFERS = 2**21  # which take a few seconds; a ring of 1,024 ranks has not quite as many
_BYTES_PER_TRANSFER = 500  # of memory, at most


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """The parts of a run; `path` is None if it never finishes, and `stall` if it does."""

    timeline: Timeline
    ranks: RankUsage
    links: LinkUsage
    path: CriticalPath | None
    stall: Stall | None

    def __repr__(self) -> str:
        if self.stall:
            return f"Explanation({self.timeline!r}, {self.stall.num_unfinished} transfers never happen)"
        shares = sorted(self.path.shares().items(), key=lambda item: -item[1]) if self.path and self.path.time_s else []
        path = "".join(f", {kind.value} {share:.0%}" for kind, share in shares[:2])
        limit = "" if self.links.bottleneck is None else f", bottleneck {self.links.name(self.links.bottleneck)}"
        return f"Explanation({self.timeline!r}{path}{limit})"


def why_not_explained(schedule: Schedule) -> str | None:
    """Why `schedule` is too large to look at each of its transfers; None if it is not."""
    num_transfers = schedule.num_transfers
    if num_transfers > MAX_TRANSFERS:
        return f"{num_transfers:,} transfers: at most {MAX_TRANSFERS:,} are examined one by one"
    if num_transfers * _BYTES_PER_TRANSFER > free_bytes():
        return f"too little free memory to examine {num_transfers:,} transfers one by one"
    return None


def explain(
    schedule: Schedule,
    network: AnyNetwork,
    size_bytes: int,
    on_progress: OnProgress = ignore_progress,
    *,
    runtime: Runtime = RULE,
) -> Explanation:
    """Simulate a collective and look at where its time goes. Raises ValueError as `simulate` does.

    on_progress, runtime: as of `simulate`.

    >>> from ringsim import explain, load_network, ring_all_reduce
    >>> explanation = explain(ring_all_reduce(4), load_network("gbe"), 2**20)
    >>> explanation.path.num_transfers
    6
    """
    timeline = simulate(schedule, network, size_bytes, runtime=runtime, on_progress=on_progress)
    topology = with_in_network_reduction([schedule], runtime.network(network).topology(schedule.num_ranks))
    chunk_bytes = schedule.chunk_bytes(size_bytes)
    stall, rows = find_stall(timeline, topology), dependencies(schedule, in_order=runtime.in_order)
    return Explanation(
        timeline=timeline,
        ranks=rank_usage(timeline),
        links=link_usage(timeline, topology, chunk_bytes, rows.channel),
        path=None if stall else critical_path(timeline, rows, topology, chunk_bytes),
        stall=stall,
    )
