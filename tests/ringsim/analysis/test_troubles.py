"""Tests of `ringsim.analysis.troubles`: what is slow or fails."""

from pathlib import Path

import pytest

from ringsim import Network, load_network
from ringsim.analysis.troubles import TroubledRank, find_troubles
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule, Transfer
from tests.ringsim.made_networks import SLOW_LINK, SLOW_RANK, made_network, network_of_nics

NETWORK = Network(latency_s=10e-6, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=5e9)


def test_a_slow_link_and_a_slow_rank_are_named() -> None:
    """Nothing else is."""
    schedule = build(Collective.ALL_REDUCE, "ring", 4)
    troubles = find_troubles(schedule, made_network(f"{SLOW_LINK}\n{SLOW_RANK}"), 4 * 2**30)
    (pair,) = troubles.pairs
    assert (pair.src, pair.dst) == (2, 3)
    assert pair.slowdown == pytest.approx(4, rel=1e-3)
    assert troubles.ranks == (TroubledRank(1, 3.0),)
    assert find_troubles(schedule, NETWORK, 2**20).pairs == ()
    assert find_troubles(schedule, NETWORK, 2**20).parts == ()
    assert find_troubles(schedule, made_network(), 2**20).ranks == ()


def test_a_nic_that_is_slower_than_the_others_is_named() -> None:
    """With its rate and theirs; what it slows down is slow, and nothing else."""
    ring = build(Collective.ALL_REDUCE, "ring", 4)
    troubles = find_troubles(ring, network_of_nics(10, 10, 1, 10), 2**22)
    assert [str(part) for part in troubles.parts] == ["the NIC of host c gives 125 MB/s, most give 1.25 GB/s"]
    assert [(pair.src, pair.dst, round(pair.slowdown)) for pair in troubles.pairs] == [(1, 2, 10), (2, 3, 10)]


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ((10, 1), ["b"]),
        ((1, 1, 10), []),
        ((10, 10, 9.9), []),
        ((10, 1, 2, 10, 10), ["b", "c"]),
        ((1, 10, 1, 10), ["a", "c"]),
    ],
)
def test_slow_is_what_most_others_are_not(rates: tuple[float, ...], slow: list[str]) -> None:
    """Of two NICs the slower one; not all others where one is faster; the slowest first."""
    parts = find_troubles(build(Collective.ALL_REDUCE, "direct", len(rates)), network_of_nics(*rates), 2**22).parts
    assert [part.name for part in parts] == [f"the NIC of host {name}" for name in slow]


def test_a_slow_cable_is_named_if_a_transfer_takes_it() -> None:
    """A ring over two pairs of hosts does; a schedule within one of them does not."""
    network = load_network(Path(__file__).parents[3] / "docs" / "networks" / "cables.toml")
    ring = find_troubles(build(Collective.ALL_REDUCE, "ring", 4), network, 2**22)
    assert [str(part) for part in ring.parts] == ["the link between left and right gives 125 MB/s, most give 1.25 GB/s"]
    assert [(pair.src, pair.dst) for pair in ring.pairs] == [(1, 2), (3, 0)]
    steps = [[Transfer(0, 1, 0, False)], [Transfer(1, 0, 0, False)]]
    within = Schedule.from_transfers(Collective.BROADCAST, "within", 4, 1, steps)
    assert find_troubles(within, network, 2**22).parts == ()
