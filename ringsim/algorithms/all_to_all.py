"""All-to-all: every rank has a block for every rank, sent directly or through other ranks.

Block `n * s + d` is the block of rank s for rank d. Every block is a message, whereas Bruck et al. and MPI pack the
blocks for one rank. Bruck sends n/2 log2(n) messages a rank, if n is a power of two; two levels send (m - 1) h + (h -
1) m on h hosts of m ranks.
"""

import numpy as np

from ringsim.algorithms.hierarchical import split_into_hosts
from ringsim.schedule import Collective, Columns, Ints, Schedule, Steps, TransferTable, require_count


def pairwise_all_to_all(num_ranks: int) -> Schedule:
    """Send in step k the block for the k-th next rank, straight to it: n - 1 steps.

    A rank receives from one rank at a time (Thakur et al. 2005).
    """
    return _straight("pairwise", num_ranks, [np.array([distance]) for distance in range(1, num_ranks)])


def direct_all_to_all(num_ranks: int) -> Schedule:
    """Send all blocks at once, straight to their owners: 1 step, n - 1 messages."""
    return _straight("direct", num_ranks, [np.arange(1, num_ranks)] if num_ranks > 1 else [])


def shift(num_ranks: int, distance: int) -> Schedule:
    """Send from an all_to_all only the blocks for the ranks at one distance; nothing at distance 0."""
    return _straight("shift", num_ranks, [np.array([distance])] if distance else [])


def bruck_all_to_all(num_ranks: int) -> Schedule:
    """Forward blocks over the distances 1, 2, 4 and so on: ceil(log2(n)) steps, about log2(n)/2 times the data sent.

    A block is sent for each set bit of the distance (d - s) mod n (Bruck et al. 1997).
    """
    require_count("num_ranks", num_ranks)
    rank = np.arange(num_ranks)[:, np.newaxis]
    steps: list[Columns] = []
    for hop in (1 << bit for bit in range((num_ranks - 1).bit_length())):
        distance = np.flatnonzero(rank.ravel() & hop)  # of the blocks that go so far in this step, among others
        sender = (rank - distance % hop) % num_ranks  # the rank from which the block started
        chunk = sender * num_ranks + (sender + distance) % num_ranks
        steps.append((rank, (rank + hop) % num_ranks, chunk, False))
    return Schedule.from_columns(Collective.ALL_TO_ALL, "bruck", num_ranks, num_ranks**2, steps)


def hierarchical_all_to_all(num_ranks: int, ranks_per_host: int | None = None) -> Schedule:
    """Pairwise exchange within hosts of m ranks, then across h hosts: m + h - 2 steps.

    ranks_per_host: see `split_into_hosts`.
    """
    require_count("num_ranks", num_ranks)
    num_hosts, per_host = split_into_hosts(num_ranks, ranks_per_host)
    host, place, other = np.ogrid[:num_hosts, :per_host, : max(num_hosts, per_host)]
    src, every_host, every_place = host * per_host + place, other[..., :num_hosts], other[..., :per_host]
    steps: list[Columns] = []
    for distance in range(1, per_host):
        to = (place + distance) % per_host
        steps.append((src, host * per_host + to, src * num_ranks + every_host * per_host + to, False, 0))
    for distance in range(1, num_hosts):
        dst = (host + distance) % num_hosts * per_host + place
        steps.append((src, dst, (host * per_host + every_place) * num_ranks + dst, False, 1))
    return Schedule.from_columns(Collective.ALL_TO_ALL, "hierarchical", num_ranks, num_ranks**2, steps)


def _straight(algorithm: str, num_ranks: int, distances: list[Ints]) -> Schedule:
    require_count("num_ranks", num_ranks)
    num_transfers = num_ranks * sum(map(len, distances))
    steps = Steps(
        len(distances), num_transfers, lambda: TransferTable.of_steps([_blocks(num_ranks, own) for own in distances])
    )
    return Schedule(Collective.ALL_TO_ALL, algorithm, num_ranks, num_ranks**2, steps)


def _blocks(num_ranks: int, distances: Ints) -> Columns:
    src = np.arange(num_ranks)[:, np.newaxis]
    dst = (src + distances) % num_ranks
    return src, dst, src * num_ranks + dst, False, np.arange(len(distances))
