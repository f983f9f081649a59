"""Strategies of hypothesis: schedules, random ones and built-in ones, and networks to run them on."""

import math
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import strategies as st

from ringsim import (
    ALGORITHMS,
    Collective,
    Network,
    Schedule,
    Transfer,
    merge,
    permute_ranks,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    split,
)
from ringsim.registry import build
from tests.ringsim.topologies import PrivateLinks

every_algorithm = pytest.mark.parametrize(
    ("collective", "algorithm"), [pytest.param(*key, id=f"{key[0].value}-{key[1]}") for key in ALGORITHMS]
)


def listed(
    *steps: Sequence[Transfer],
    collective: Collective = Collective.ALL_REDUCE,
    num_ranks: int | None = None,
    num_chunks: int | None = None,
) -> Schedule:
    """A schedule written out; it has as many ranks and chunks as its transfers name, if nothing else is said."""
    transfers = [transfer for step in steps for transfer in step]
    num_ranks = num_ranks or 1 + max(max(transfer[:2]) for transfer in transfers)
    num_chunks = num_chunks or 1 + max(transfer.chunk for transfer in transfers)
    return Schedule.from_transfers(collective, "listed", num_ranks, num_chunks, steps)


@st.composite
def schedules(
    draw: st.DrawFn, max_ranks: int = 4, max_chunks: int = 4, max_steps: int = 6, channels_of_a_pair: int = 1
) -> Schedule:
    """Any transfers in any steps, for no particular collective; a rank may send and receive several in one step.

    channels_of_a_pair: that one rank may send to another on, at most. Two pairs may have a channel in common.
    """
    num_ranks = draw(st.integers(2, max_ranks))
    num_chunks = draw(st.integers(1, max_chunks))
    of_hop = draw(st.lists(st.integers(0, 2), min_size=num_ranks, max_size=num_ranks))
    transfer = st.builds(
        lambda src, hop, chunk, reduce, more: Transfer(src, (src + hop) % num_ranks, chunk, reduce, of_hop[hop] + more),
        st.integers(0, num_ranks - 1),
        st.integers(1, num_ranks - 1),
        st.integers(0, num_chunks - 1),
        st.booleans(),
        st.integers(0, channels_of_a_pair - 1),
    )
    steps = draw(st.lists(st.lists(transfer, max_size=4), max_size=max_steps))
    return listed(*steps, num_ranks=num_ranks, num_chunks=num_chunks)


def built_in_schedules(min_ranks: int = 1, max_ranks: int = 10) -> st.SearchStrategy[Schedule]:
    """Every algorithm there is, for a few ranks."""
    return st.builds(build_key, st.sampled_from(list(ALGORITHMS)), st.integers(min_ranks, max_ranks))


@cache
def build_key(key: tuple[Collective, str], num_ranks: int) -> Schedule:
    """`build`, as the strategies call it."""
    return build(*key, num_ranks)


@st.composite
def relays(draw: st.DrawFn, max_ranks: int = 5) -> Schedule:
    """Rings of rings: halves and wholes, both ways, in several orders, in segments."""
    num_ranks, direction = draw(st.integers(2, max_ranks)), draw(st.sampled_from([1, -1]))
    made_by = draw(st.sampled_from([ring_all_reduce, ring_reduce_scatter, ring_all_gather]))
    ring = made_by(num_ranks, direction)
    kind = draw(st.sampled_from(["plain", "in segments", "both ways", "in two orders", "both ways in segments"]))
    other = made_by(num_ranks, -direction) if "both ways" in kind else permute_ranks(ring, range(num_ranks)[::-1])
    whole = ring if kind in ("plain", "in segments") else merge(ring, other)
    schedule = split(whole, 2) if "segments" in kind else whole
    assert schedule.steps.relay
    return schedule


@st.composite
def rings(draw: st.DrawFn, max_ranks: int = 4, max_chunks: int = 4, max_steps: int = 6) -> Schedule:
    """Any transfers to the next rank of a ring, at most one of each rank in a step, for no particular collective."""
    order = draw(st.permutations(range(draw(st.integers(2, max_ranks)))))
    num_chunks = draw(st.integers(1, max_chunks))
    sent = st.tuples(st.integers(0, num_chunks - 1), st.booleans())
    steps = draw(st.lists(st.dictionaries(st.sampled_from(range(len(order))), sent), max_size=max_steps))
    rows = [
        [Transfer(order[at], order[(at + 1) % len(order)], chunk, reduce) for at, (chunk, reduce) in step.items()]
        for step in steps
    ]
    return listed(*rows, num_ranks=len(order), num_chunks=num_chunks)


def uniform_networks(kind: type[Network] = Network) -> st.SearchStrategy[Network]:
    """With a port for each rank; for chunks of a few bytes latency, overheads, sending and reducing cost about as much.

    kind: `PrivateLinks` for networks on which nothing is shared, whatever the schedule.
    """
    cost_s, bytes_per_s = st.floats(0, 10), st.floats(0.1, 10)
    return st.builds(
        kind.uniform,
        latency_s=cost_s,
        bandwidth_bytes_per_s=bytes_per_s,
        reduce_bytes_per_s=bytes_per_s | st.just(math.inf),
        gap_s=cost_s,
        receive_overhead_s=cost_s,
    )


def networks() -> st.SearchStrategy[Network]:
    """With ports or private links."""
    return uniform_networks() | uniform_networks(PrivateLinks)
