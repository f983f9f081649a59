"""Bounds of collectives on a network."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabled_networks import cabled, fully_connected, hosts, hypercube, islands, star, torus
from ringsim import Collective, Network, ScheduleError, load_network, predict_time
from ringsim.analysis import BOUNDED, bound_of, candidates
from ringsim.network import read_network
from ringsim.registry import build
from tests.ringsim.made_networks import SLOW_RANK, made_network, network_of_nics
from tests.ringsim.strategies import networks

RACKS = Path("docs/networks/racks.toml").read_text()
MADE: dict[str, tuple[Callable[[], Network], int]] = {
    "torus": (lambda: torus(3, 3), 9),
    "torus with a cable missing": (lambda: torus(3, 3, missing=1), 9),
    "hypercube": (lambda: hypercube(3), 8),
    "fully connected": (lambda: fully_connected(5), 5),
    "chain": (lambda: cabled(4, [(0, 1), (1, 2), (2, 3)]), 4),
    "star with a slow NIC": (lambda: star(2), 8),
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


def _assert_never_below(collective: Collective, network: Network, num_ranks: int, size_bytes: int) -> None:
    bound = bound_of(collective, network, num_ranks, size_bytes)
    for name in candidates(collective, [network]):
        try:
            schedule = build(collective, name, num_ranks, size_bytes)
        except (ValueError, ScheduleError):
            continue
        assert predict_time(schedule, network, size_bytes) >= bound.time_s * (1 - 1e-9), (name, bound)


FAR = ("torus with a cable missing", "chain", "racks", "switch that adds", "three hosts")  # latencies of several kinds


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [*((name, 2**20 + 3) for name in MADE), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in FAR)],
)
def test_no_algorithm_undercuts_the_bound(name: str, size_bytes: int) -> None:
    """On any made network; for a byte, whose time is latency, on some: a bound that one algorithm beats is none."""
    make, num_ranks = MADE[name]
    for collective in BOUNDED:
        _assert_never_below(collective, make(), num_ranks, size_bytes)


NICS = st.lists(st.sampled_from([0.5, 1, 2.5, 10]), min_size=2, max_size=6)
DRAWN = st.tuples(networks(), st.integers(1, 7)) | NICS.map(lambda rates: (network_of_nics(*rates), len(rates)))


@given(st.sampled_from(BOUNDED), DRAWN, st.integers(0, 100) | st.integers(1, 2**24))
def test_nor_on_drawn_networks(collective: Collective, drawn: tuple[Network, int], size_bytes: int) -> None:
    """Whether ranks have ports, or each pair a link of its own, or hosts unlike NICs: the slowest one is a cut."""
    _assert_never_below(collective, *drawn, size_bytes)


BOUNDS = {
    # All that the other seven have must pass the slow NIC.
    "slow NIC": ("all_gather", star(2), 8, 2**26, 2e-6, 7 / 8 * 2**26 / (1.25e9 / 4)),
    # Half of the data must pass the cable between two islands.
    "islands": ("broadcast", cabled(4, [(0, 1), (2, 3), (1, 2)]), 4, 2**26, 3e-6, 2**26 / 1.25e9),
    # 2 (n - 1) / n of the size, as Patarasuk and Yuan have it, though a cut alone asks for half of that.
    "ports": ("all_reduce", Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1e9), 5, 10**9, 0.0, 8 / 5),
    # The farthest two of a chain of four are three cables apart.
    "latency": ("all_reduce", cabled(4, [(0, 1), (1, 2), (2, 3)]), 4, 1, 3e-6, 1e-6 + 1 / 1.25e9),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_by_hand(name: str) -> None:
    """The bound is the larger of the time of the tightest cut and the latency between the farthest ranks."""
    collective, network, num_ranks, size_bytes, latency_s, throughput_s = BOUNDS[name]
    bound = bound_of(Collective(collective), network, num_ranks, size_bytes)
    assert bound.latency_s == pytest.approx(latency_s)
    assert bound.throughput_s == pytest.approx(throughput_s, rel=1e-3)
    assert bound.time_s == max(bound.latency_s, bound.throughput_s)
    assert (bound.ranks, bound.resources) == ((2,), ("host2.nic0.in",)) or collective != "all_gather"
