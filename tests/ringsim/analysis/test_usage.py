"""Tests of the usage of ranks and links in `ringsim.analysis.explanation`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Collective, Network, Schedule, Transfer
from ringsim.analysis.explanation import link_usage, rank_usage
from ringsim.network import read_network
from ringsim.registry import build
from ringsim.simulation import simulate
from tests.ringsim.network.test_cluster import files
from tests.ringsim.simulation.test_simulate import NETWORK
from tests.ringsim.strategies import listed, schedules
from tests.ringsim.topologies import PrivateLinks


def covered_s(intervals: list[tuple[float, float]]) -> float:
    """Return the time that intervals cover together, one after the other."""
    total, until = 0.0, 0.0
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


# Sending costs something, as a network on which messages take no time is refused.
NETWORKS = st.just(NETWORK) | files().map(
    lambda text: read_network('[rank]\nsend_overhead = "1us"\n' + text.removeprefix("[rank]\n"), "test.toml")
)
NICS = '[host]\nranks = 2\nlink.latency = "1us"\nnic = { bandwidth = "1GB/s", latency = "1us" }\n'
PAIRS = listed([Transfer(0, 2, 0, False), Transfer(1, 3, 1, False)])
ALONE = {f"rank{src} -> rank{(src + 1) % 3}": 0.5 for src in range(3)}
LINKS = [
    (PAIRS, read_network(NICS, "x"), 2000, {"host0.nic0.out": 0.5, "host1.nic0.in": 0.5}, "host0.nic0.out"),
    (build(Collective.ALL_GATHER, "ring", 3), PrivateLinks.uniform(1.0, 1.0), 3, ALONE, "rank0 -> rank1"),
    (build(Collective.ALL_REDUCE, "ring", 1), Network.uniform(0.0, 1.0), 0, {}, None),
]


@given(schedules(), NETWORKS, st.integers(0, 10**5))
def test_times_of_ranks_are_unions(schedule: Schedule, network: Network, size: int) -> None:
    """Sending, applying and either, one interval after the other; the rest is waiting. No link exceeds its capacity."""
    timeline = simulate(schedule, network, size)
    usage = rank_usage(timeline)
    for rank in range(schedule.num_ranks):
        sends, applies = timeline.src == rank, timeline.dst == rank
        sent = list(zip(timeline.start_s[sends].tolist(), timeline.sent_s[sends].tolist(), strict=True))
        applied = list(zip(timeline.apply_s[applies].tolist(), timeline.applied_s[applies].tolist(), strict=True))
        assert usage.sending_s[rank] == pytest.approx(covered_s(sent))
        assert usage.applying_s[rank] == pytest.approx(covered_s(applied))
        assert usage.busy_s[rank] == pytest.approx(covered_s(sent + applied))
        assert usage.busy_s[rank] + usage.waiting_s[rank] == pytest.approx(timeline.time_s)
        assert usage.last_active_s[rank] == max([end for _, end in sent + applied], default=0.0)
    utilisation = link_usage(timeline, network.topology(schedule.num_ranks), schedule.chunk_bytes(size)).utilisation
    assert ((utilisation >= 0) & (utilisation <= 1 + 1e-9)).all()


def test_links_by_hand() -> None:
    """Two through one NIC; pairs without a resource, half of whose time is latency; without time nothing is used."""
    for schedule, network, size, used, bottleneck in LINKS:
        timeline = simulate(schedule, network, size)
        links = link_usage(timeline, network.topology(schedule.num_ranks), schedule.chunk_bytes(size))
        shares = {links.name(link): share for link, share in enumerate(links.utilisation.tolist()) if share}
        assert shares == {name: pytest.approx(share) for name, share in used.items()}
        assert (None if links.bottleneck is None else links.name(links.bottleneck)) == bottleneck
