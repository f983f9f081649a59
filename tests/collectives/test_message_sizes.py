"""The executor sends, transfer by transfer, as many bytes as the simulator counts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import collectives
from ringsim import ALGORITHMS, Collective, Network
from ringsim.registry import build
from ringsim.simulation import has_contention, simulate
from tests.collectives.shared_groups import kept_group
from tests.collectives.travel import Sent, sent_by_gloo
from tests.ranks import RankPool

NUM_RANKS = 4
BYTE_A_SECOND = Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0)  # so that times are numbers of bytes


def calls_of(
    whole: torch.Tensor, share: torch.Tensor, group: dist.ProcessGroup, algorithm: str
) -> dict[Collective, Callable[[], object]]:
    """A call of each collective on a tensor and on a share of it, which rank 0 gives to others, or gets from them."""
    shares = list(whole.chunk(group.size())) if group.rank() == 0 else None
    how: dict[str, Any] = {"group": group, "algorithm": algorithm}
    return {
        Collective.ALL_REDUCE: lambda: collectives.all_reduce(whole, **how),
        Collective.REDUCE_SCATTER: lambda: collectives.reduce_scatter_tensor(share, whole, **how),
        Collective.ALL_GATHER: lambda: collectives.all_gather_into_tensor(whole, share, **how),
        Collective.BROADCAST: lambda: collectives.broadcast(whole, 0, **how),
        Collective.GATHER: lambda: collectives.gather(share, shares, group_dst=0, **how),
        Collective.SCATTER: lambda: collectives.scatter(share, shares, group_src=0, **how),
        Collective.ALL_TO_ALL: lambda: collectives.all_to_all_single(whole, whole.clone(), **how),
        Collective.REDUCE: lambda: collectives.reduce(whole, 0, **how),
    }


def sent(group: dist.ProcessGroup, collective: Collective, algorithm: str, length: int, dtype: torch.dtype) -> Sent:
    """Return the messages of this rank in one call: (step, peer, chunk, bytes) in the order of sending."""
    whole = torch.zeros(length, dtype=dtype)
    share = torch.zeros(length // group.size(), dtype=dtype)
    call = calls_of(whole, share, group, algorithm)[collective]
    with sent_by_gloo() as messages:
        call()
    return messages


def all_sent(
    _: dist.ProcessGroup, cases: list[tuple[Collective, str]], length: int, dtype: torch.dtype
) -> dict[tuple[Collective, str], Sent]:
    """Return the messages of several algorithms over Gloo, without the calls that compare fingerprints."""
    group = kept_group(NUM_RANKS, "gloo")
    if group is None:
        return {}
    collectives.check_calls(group, collectives.CallCheck.NONE)
    try:
        return {case: sent(group, *case, length, dtype) for case in cases}
    finally:
        collectives.check_calls(group, collectives.CallCheck.NEW)


def simulated(collective: Collective, algorithm: str, size_bytes: int, element_bytes: int) -> list[Sent]:
    """The same by rank, from the times in which links are held, or by what is sent on links that two channels share."""
    schedule = build(collective, algorithm, NUM_RANKS, size_bytes)
    timeline = simulate(schedule, BYTE_A_SECOND, size_bytes, element_bytes=element_bytes)
    num_bytes = (timeline.sent_s - timeline.start_s).round().astype(int).tolist()
    if has_contention(schedule, BYTE_A_SECOND.topology(NUM_RANKS)):
        num_bytes = schedule.chunk_bytes(size_bytes, element_bytes)[timeline.chunk].tolist()
    columns = (timeline.src, timeline.step, timeline.dst, timeline.chunk)
    rows = list(zip(*(column.tolist() for column in columns), num_bytes, strict=True))
    return [sorted(row[1:] for row in rows if row[0] == rank) for rank in range(NUM_RANKS)]


@pytest.mark.parametrize(
    ("length", "dtype"),
    [(1, torch.float32), (13, torch.float64), (1031, torch.int16), (2**21 + 2**18 + 3, torch.float32)],
)
def test_the_simulator_counts_what_is_sent(ranks: RankPool, length: int, dtype: torch.dtype) -> None:
    """Every algorithm, for lengths that divide by nothing; the last is long enough for Gloo's ring to cut finer."""
    whole = {Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE}
    for shared in (False, True):
        cases = [key for key in ALGORITHMS if (key[0] not in whole) is shared]
        num_elements = NUM_RANKS * (length // NUM_RANKS + 1) if shared else length
        by_rank = ranks.run(all_sent, cases, num_elements, dtype)[:NUM_RANKS]
        for case in cases:
            counted = simulated(*case, num_elements * dtype.itemsize, dtype.itemsize)
            assert [sorted(messages[case]) for messages in by_rank] == counted, case
