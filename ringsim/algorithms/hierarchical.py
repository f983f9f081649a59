"""Two levels: within hosts and across them, or along the rows of a torus and its columns.

Reduce-scatter within each host, all-reduce of each share across the hosts, all-gather within each host: each of the m
ranks of a host sends only 1/m of the data across the network.
"""

from math import isqrt

import numpy as np

from ringsim.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from ringsim.schedule import Collective, Schedule, on_channel, on_groups, split, then


def hierarchical_all_reduce(num_ranks: int, ranks_per_host: int | None = None) -> Schedule:
    """Rings within hosts of m ranks and across h hosts: 2(m - 1) + 2(h - 1) rounds.

    A round within a host moves h chunks. ranks_per_host: see `split_into_hosts`.
    """
    return _two_levels("hierarchical", *split_into_hosts(num_ranks, ranks_per_host))


def torus_all_reduce(num_ranks: int) -> Schedule:
    """Reduce-scatter in the rows of a two-dimensional torus, all-reduce in its columns, all-gather in the rows.

    2(rows - 1) + 2(columns - 1) rounds (Mikami et al. 2018). The torus is as square as possible, with at least as many
    columns as rows.
    """
    return _two_levels("torus", *torus_of(num_ranks))


def hosts_of(num_ranks: int) -> tuple[int, int]:
    """Return the default number of hosts, and of ranks on each: the largest divisor of `num_ranks` up to 8."""
    ranks_per_host = largest_divisor(num_ranks, 8)
    return num_ranks // ranks_per_host, ranks_per_host


def split_into_hosts(num_ranks: int, ranks_per_host: int | None) -> tuple[int, int]:
    """Return the number of hosts, and of ranks on each; None: as `hosts_of`.

    Raises ValueError if the ranks do not fill their hosts.
    """
    if ranks_per_host is None:
        return hosts_of(num_ranks)
    if ranks_per_host < 1 or num_ranks % ranks_per_host:
        raise ValueError(f"ranks_per_host {ranks_per_host}: must divide the number of ranks, {num_ranks}")
    return num_ranks // ranks_per_host, ranks_per_host


def torus_of(num_ranks: int) -> tuple[int, int]:
    """Return the number of rows, and of columns."""
    rows = largest_divisor(num_ranks, isqrt(num_ranks))
    return rows, num_ranks // rows


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of `number` up to `limit`."""
    return max(divisor for divisor in range(1, limit + 1) if number % divisor == 0)


def _two_levels(algorithm: str, num_groups: int, group_size: int) -> Schedule:
    """Build both levels. Chunk `i * num_groups + j` is the part of share i that group j reduces across the groups."""
    num_ranks = num_groups * group_size
    ranks = np.arange(num_ranks).reshape(num_groups, group_size)
    scatter = split(ring_reduce_scatter(group_size), num_groups)
    gather = split(ring_all_gather(group_size), num_groups)
    across = on_groups(
        ring_all_reduce(num_groups), ranks.T, num_ranks, num_ranks, Collective.ALL_REDUCE, ranks.T[:, 0] * num_groups
    )
    across = on_channel(across, 1)  # by other links than within the groups
    scatter, gather = [on_groups(part, ranks, num_ranks, num_ranks, part.collective) for part in (scatter, gather)]
    first = then(scatter, across, Collective.ALL_REDUCE, algorithm)
    return then(first, gather, Collective.ALL_REDUCE, algorithm)
