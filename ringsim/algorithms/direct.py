"""Direct algorithms: every message goes to its final rank, in one or two steps, with a channel for each peer."""

import numpy as np

from ringsim.limits import require_memory
from ringsim.schedule import BYTES_LISTED, Collective, Columns, Ints, Schedule, then


def direct_reduce_scatter(num_ranks: int) -> Schedule:
    """Send each share straight to its owner, which adds: 1 step, n - 1 messages."""
    src, dst = _pairs(num_ranks)
    return _one_step(Collective.REDUCE_SCATTER, num_ranks, num_ranks, (src, dst, dst, True, dst))


def direct_all_gather(num_ranks: int) -> Schedule:
    """Send each share straight to all other ranks: 1 step, n - 1 messages."""
    src, dst = _pairs(num_ranks)
    return _one_step(Collective.ALL_GATHER, num_ranks, num_ranks, (src, dst, src, False, dst))


def direct_all_reduce(num_ranks: int) -> Schedule:
    """Send the whole tensor to all other ranks, which add ("one-shot"): 1 step, n - 1 times the data sent.

    Each rank adds in another order: the last bits of floating-point sums differ between ranks.
    """
    src, dst = _pairs(num_ranks)
    return _one_step(Collective.ALL_REDUCE, num_ranks, 1, (src, dst, 0, True, dst))


def two_shot_all_reduce(num_ranks: int) -> Schedule:
    """Direct reduce-scatter, then direct all-gather ("two-shot"): 2 steps."""
    halves = direct_reduce_scatter(num_ranks), direct_all_gather(num_ranks)
    return then(*halves, Collective.ALL_REDUCE, "two_shot")


def direct_broadcast(num_ranks: int) -> Schedule:
    """Send the data straight from rank 0 to all others: 1 step, n - 1 messages of rank 0."""
    dst = np.arange(1, num_ranks)
    return _one_step(Collective.BROADCAST, num_ranks, 1, (0, dst, 0, False, dst))


def direct_reduce(num_ranks: int) -> Schedule:
    """Send the data of all ranks straight to rank 0, which adds: 1 step."""
    return _one_step(Collective.REDUCE, num_ranks, 1, (np.arange(1, num_ranks), 0, 0, True))


def direct_gather(num_ranks: int) -> Schedule:
    """Send each share straight to rank 0: 1 step, n - 1 messages to rank 0."""
    src = np.arange(1, num_ranks)
    return _one_step(Collective.GATHER, num_ranks, num_ranks, (src, 0, src, False))


def direct_scatter(num_ranks: int) -> Schedule:
    """Send each share straight from rank 0 to its owner: 1 step, n - 1 messages of rank 0."""
    dst = np.arange(1, num_ranks)
    return _one_step(Collective.SCATTER, num_ranks, num_ranks, (0, dst, dst, False, dst))


def parameter_server_all_reduce(num_ranks: int) -> Schedule:
    """Send all data to rank 0, which adds, and the sum back: 2 steps."""
    return then(direct_reduce(num_ranks), direct_broadcast(num_ranks), Collective.ALL_REDUCE, "parameter_server")


def _one_step(collective: Collective, num_ranks: int, num_chunks: int, columns: Columns) -> Schedule:
    return Schedule.from_columns(collective, "direct", num_ranks, num_chunks, [columns] if num_ranks > 1 else [])


def _pairs(num_ranks: int) -> tuple[Ints, Ints]:
    """Return all (src, dst) with src != dst, by src: every rank adds in the order of the ranks."""
    num_pairs = num_ranks * (num_ranks - 1)
    require_memory(f"all {num_pairs:,} pairs of {num_ranks:,} ranks", num_pairs * (2 * 8 + BYTES_LISTED))
    src, dst = np.nonzero(~np.eye(num_ranks, dtype=np.bool_))
    return src, dst
