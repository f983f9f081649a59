"""`BlockedRun`: the transfers that a failure prevents, and the waiting ranks."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ringsim.network import NONE, Floats, Topology
from ringsim.simulation import Timeline
from ringsim.units import format_time

MAX_TRANSFERS = 8  # that are named
MAX_RANKS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class BlockedTransfer:
    """A transfer that is never applied."""

    step: int
    src: int
    dst: int
    chunk: int


@dataclass(frozen=True, slots=True)
class BlockedRank:
    """A rank that never finishes.

    last_active_s: end of its last activity; 0 if there is none.
    doing: "sends", "adds" (or copies) or "waits", for `transfer`, without end.
    peer: the other rank of the transfer. failed: failed resources on its path.
    """

    rank: int
    last_active_s: float
    doing: str
    peer: int
    transfer: BlockedTransfer
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlockedRun:
    """A run that never finishes; nothing happens after `until_s`.

    first: the first unapplied transfers in step order. failed: resources that stop transfers, and when they failed.
    """

    until_s: float
    num_transfers: int
    num_unfinished: int
    first: tuple[BlockedTransfer, ...]
    failed: tuple[tuple[str, float], ...]
    ranks: tuple[BlockedRank, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"failed": [{"name": name, "failed_at_s": at_s} for name, at_s in self.failed]}


def find_blocked(timeline: Timeline, topology: Topology) -> BlockedRun | None:
    """Return why a run never finishes; None if it finishes."""
    never = np.flatnonzero(~np.isfinite(timeline.applied_s))
    if not len(never):
        return None
    ranks, resources = _blocked_ranks(timeline, topology), topology.resources
    names = dict.fromkeys(name for rank in ranks if rank.doing != "waits" for name in rank.failed)
    return BlockedRun(
        until_s=timeline.until_s,
        num_transfers=len(timeline),
        num_unfinished=len(never),
        first=tuple(_transfer(timeline, row) for row in never[:MAX_TRANSFERS].tolist()),
        failed=tuple((name, float(resources.fails_at_s[resources.names.index(name)])) for name in names),
        ranks=ranks,
    )


def _transfer(timeline: Timeline, row: int) -> BlockedTransfer:
    return BlockedTransfer(*(int(getattr(timeline, name)[row]) for name in ("step", "src", "dst", "chunk")))


def _blocked_ranks(timeline: Timeline, topology: Topology) -> tuple[BlockedRank, ...]:
    """Return the ranks that never finish, with the first unfinished activity, or else the first wait."""
    last_active = last_active_s(timeline)
    unended = ~np.isfinite(timeline.applied_s)
    begun_to_send = np.isfinite(timeline.start_s) & ~np.isfinite(timeline.sent_s)
    begun_to_apply = np.isfinite(timeline.apply_s) & unended
    activities: dict[int, tuple[str, int]] = {}
    for doing, its_rank, rows in (
        ("sends", timeline.src, begun_to_send),
        ("adds", timeline.dst, begun_to_apply),
        ("waits", timeline.dst, unended),
    ):
        for row in np.flatnonzero(rows).tolist():
            activities.setdefault(int(its_rank[row]), (doing, row))
    ranks = []
    for rank, (doing, row) in sorted(activities.items()):
        transfer = _transfer(timeline, row)
        peer = transfer.dst if doing == "sends" else transfer.src
        failed = _failed(topology, transfer, timeline.until_s)
        ranks.append(BlockedRank(rank, float(last_active[rank]), doing, peer, transfer, failed))
    return tuple(ranks)


def last_active_s(timeline: Timeline) -> Floats:
    """Return the time of each rank's last event, (num_ranks,)."""
    latest = np.zeros(timeline.num_ranks)
    for rank, begin, end in (
        (timeline.src, timeline.start_s, timeline.sent_s),
        (timeline.dst, timeline.apply_s, timeline.applied_s),
    ):
        np.maximum.at(latest, rank, np.where(np.isfinite(end), end, np.where(np.isfinite(begin), begin, 0.0)))
    return latest


def _failed(topology: Topology, transfer: BlockedTransfer, until_s: float) -> tuple[str, ...]:
    """Return the failed resources of the path and the failed cores of its ranks."""
    resources, cores = topology.resources, topology.processors.cores
    path = topology.paths(np.array([transfer.src]), np.array([transfer.dst])).resource[0].tolist()
    used = dict.fromkeys([*path, int(cores[transfer.src]), int(cores[transfer.dst])])
    fails_at = {number: float(resources.fails_at_s[number]) for number in used if number != NONE}
    # A transfer that uses the first failed resource cannot end after its failure.
    first_s = min(fails_at.values(), default=np.inf)
    return tuple(resources.names[number] for number, at_s in fails_at.items() if at_s <= max(until_s, first_s) < np.inf)


def format_blocked(blocked: BlockedRun) -> list[str]:
    """Return lines of text; steps count from 1."""
    first = blocked.first[0]
    shown = blocked.ranks[:MAX_RANKS_SHOWN]
    more = len(blocked.ranks) - len(shown)
    return [
        f"{blocked.num_unfinished} of {blocked.num_transfers} transfers cannot happen, from step {first.step + 1}, "
        f"rank {first.src} -> {first.dst}, chunk {first.chunk}; nothing finishes after {format_time(blocked.until_s)}",
        *(f"{name} failed at {format_time(at_s)}" for name, at_s in blocked.failed),
        *(
            f"rank {rank.rank} was last active at {format_time(rank.last_active_s)} and {hanging_text(rank)}"
            for rank in shown
        ),
        *([f"and {more} more ranks"] if more else []),
    ]


_HANGING = {
    "sends": "sends to rank {peer} without end: chunk {chunk}, step {step}",
    "adds": "adds without end what rank {peer} sent: chunk {chunk}, step {step}",
    "waits": "waits for rank {peer}: chunk {chunk}, step {step}",
}


def hanging_text(rank: BlockedRank, first_step: int = 1) -> str:
    """Describe a rank's endless activity; steps count from `first_step`."""
    transfer = rank.transfer
    return _HANGING[rank.doing].format(peer=rank.peer, chunk=transfer.chunk, step=transfer.step + first_step)
