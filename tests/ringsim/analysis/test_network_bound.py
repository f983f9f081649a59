"""Bounds of collectives on a network."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabled_networks import cabled, fully_connected, hosts, hypercube, islands, star, torus
from ringsim import Collective, Network, load_network, predict_time
from ringsim.analysis import BOUNDED, bound_of, candidates
from ringsim.network import AnyNetwork, read_network
from ringsim.registry import build
from ringsim.schedule import ScheduleError
from tests.ringsim.made_networks import SLOW_RANK, made_network, network_of_nics
from tests.ringsim.strategies import networks

RACKS = Path("docs/networks/racks.toml").read_text()
MADE: dict[str, tuple[Callable[[], AnyNetwork], int]] = {
    "torus": (lambda: torus(3, 3), 9),
    "torus with a cable missing": (lambda: torus(3, 3, missing=1), 9),
    "hypercube": (lambda: hypercube(3), 8),
    "fully connected": (lambda: fully_connected(5), 5),
    "chain": (lambda: cabled(4, [(0, 1), (1, 2), (2, 3)]), 4),
    "star": (star, 7),
    "star with a slow NIC": (lambda: star(2), 8),
    "hosts": (lambda: hosts(4), 12),
    "hosts with NICs for pairs": (lambda: hosts(4, 2), 8),
    "hosts with a slow NIC": (lambda: hosts(3, 1, 1), 9),
    "islands": (lambda: islands(3), 9),
    "unlike NICs": (lambda: network_of_nics(1, 10, 2.5, 10), 4),
    "slow rank": (lambda: made_network(SLOW_RANK, 2), 6),
    "cables": (lambda: load_network("docs/networks/cables.toml"), 4),
    "shared memory bus": (lambda: load_network("loopback"), 4),
    "racks": (lambda: read_network(RACKS.replace("hosts = 4 ", "hosts = 2 "), "racks"), 8),
    "switch that adds": (lambda: load_network("dgx-h100"), 8),
    "switches that add": (lambda: load_network("dgx-h100-cluster"), 16),
    "three hosts": (lambda: load_network("docs/networks/three-hosts.toml"), 6),
}


def _assert_never_below(collective: Collective, network: AnyNetwork, num_ranks: int, size_bytes: int) -> None:
    bound = bound_of(collective, network, num_ranks, size_bytes)
    assert bound
    for name in candidates(collective, [network]):
        try:
            schedule = build(collective, name, num_ranks, size_bytes)
        except (ValueError, ScheduleError):
            continue
        assert predict_time(schedule, network, size_bytes) >= bound.time_s * (1 - 1e-9), (name, bound)


@pytest.mark.parametrize("size_bytes", [1, 2**20 + 3])
@pytest.mark.parametrize("name", MADE)
def test_no_algorithm_undercuts_the_bound(name: str, size_bytes: int) -> None:
    """On any made network, for any size: a bound that one algorithm beats is none."""
    make, num_ranks = MADE[name]
    for collective in BOUNDED:
        _assert_never_below(collective, make(), num_ranks, size_bytes)


@given(st.sampled_from(BOUNDED), networks(), st.integers(1, 7), st.integers(0, 100))
def test_no_algorithm_undercuts_the_bound_on_uniform_networks(
    collective: Collective, network: Network, num_ranks: int, size_bytes: int
) -> None:
    """Whether ranks have ports, or each pair a link of its own."""
    _assert_never_below(collective, network, num_ranks, size_bytes)


@given(
    st.sampled_from(BOUNDED),
    st.lists(st.sampled_from([0.5, 1, 2.5, 10]), min_size=2, max_size=6),
    st.integers(1, 2**24),
)
def test_no_algorithm_undercuts_the_bound_with_unlike_nics(
    collective: Collective, rates: list[float], size_bytes: int
) -> None:
    """The cut before the slowest host is among those that are looked for."""
    _assert_never_below(collective, network_of_nics(*rates), len(rates), size_bytes)


def test_the_cut_before_a_slow_nic_bounds() -> None:
    """All that the other seven have must pass the slow NIC."""
    bound = bound_of(Collective.ALL_GATHER, star(2), 8, 2**26)
    assert bound
    assert bound.ranks == (2,)
    assert bound.resources == ("host2.nic0.in",)
    assert bound.throughput_s == pytest.approx(7 / 8 * 2**26 / (1.25e9 / 4), rel=1e-3)


def test_the_cut_between_islands_bounds() -> None:
    """Half of the data must pass the uplink, which is no faster than the NIC of one rank."""
    bound = bound_of(Collective.BROADCAST, cabled(4, [(0, 1), (2, 3), (1, 2)]), 4, 2**26)
    assert bound
    assert bound.throughput_s == pytest.approx(2**26 / 1.25e9, rel=1e-3)


def test_messages_of_an_all_reduce_share_all_ports() -> None:
    """2 (n - 1) / n of the size, as Patarasuk and Yuan have it, though a cut alone asks for half of that."""
    network = Network(latency_s=0.0, bandwidth_bytes_per_s=1e9)
    bound = bound_of(Collective.ALL_REDUCE, network, 5, 10**9)
    assert bound
    assert bound.time_s == pytest.approx(8 / 5)


def test_latencies_alone_bound_small_messages() -> None:
    """The farthest two of a chain of four are three cables apart."""
    bound = bound_of(Collective.ALL_REDUCE, cabled(4, [(0, 1), (1, 2), (2, 3)]), 4, 1)
    assert bound
    assert bound.latency_s == pytest.approx(3e-6)
    assert bound.time_s == bound.latency_s
