"""Tests of `ringsim.analysis.usage`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Cluster, Collective, Network, Schedule, Timeline, Transfer
from ringsim.analysis.explanation import LinkUsage, link_usage, rank_usage
from ringsim.network import AnyNetwork
from ringsim.network.file_reader import read_network
from ringsim.registry import build
from ringsim.simulation import simulate
from tests.ringsim.network.test_cluster import files
from tests.ringsim.simulation.test_simulate import NETWORK
from tests.ringsim.strategies import schedules
from tests.ringsim.topologies import PrivateLinks


def cluster(text: str) -> Cluster:
    """The network that this TOML describes."""
    return read_network(text, "test.toml")


def links_of(schedule: Schedule, network: AnyNetwork, size: int) -> LinkUsage:
    """How much its links are used."""
    chunk_bytes = schedule.chunk_bytes(size)
    return link_usage(simulate(schedule, network, size), network.topology(schedule.num_ranks), chunk_bytes)


def covered_s(intervals: list[tuple[float, float]]) -> float:
    """Return the time that intervals cover together, one after the other."""
    total, until = 0.0, 0.0
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


# Sending costs something, as a network on which messages take no time is refused.
NETWORKS = st.just(NETWORK) | files().map(
    lambda text: cluster('[rank]\nsend_overhead = "1us"\n' + text.removeprefix("[rank]\n"))
)


@given(schedules(), NETWORKS, st.integers(0, 10**5))
def test_times_of_ranks_are_unions(schedule: Schedule, network: AnyNetwork, size: int) -> None:
    """Sending, applying and either, looked at one interval after the other; and what is left is waiting."""
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


@given(schedules(), NETWORKS, st.integers(0, 10**5))
def test_no_link_moves_more_than_it_can(schedule: Schedule, network: AnyNetwork, size: int) -> None:
    """Utilisation lies between 0 and 1."""
    utilisation = links_of(schedule, network, size).utilisation
    assert ((utilisation >= 0) & (utilisation <= 1 + 1e-9)).all()


def test_overlapping_sends_count_once() -> None:
    """Rank 0 sends 2 bytes to each of two others on two channels of one port: 4 s of sending, not 8; then they add."""
    rows = [[Transfer(0, 1, 0, True, 0), Transfer(0, 2, 0, True, 1)]]
    schedule = Schedule.from_transfers(Collective.BROADCAST, "both", 3, 1, rows)
    usage = rank_usage(simulate(schedule, Network(0.5, 1.0, 2.0), 2))
    assert usage.sending_s.tolist() == [4, 0, 0]
    assert usage.applying_s.tolist() == [0, 1, 1]
    assert usage.waiting_s.tolist() == [1.5, 4.5, 4.5]
    assert (usage.busiest, usage.slowest) == (0, 1)


def test_the_bottleneck_has_its_name() -> None:
    """Both ranks of a host send through one NIC, which is full all the time; the one that receives is as busy."""
    network = cluster('[host]\nranks = 2\nlink.latency = "1us"\n[host.nic]\nbandwidth = "1GB/s"\n')
    rows = [[Transfer(0, 2, 0, False), Transfer(1, 3, 1, False)]]
    schedule = Schedule.from_transfers(Collective.ALL_GATHER, "pairs", 4, 2, rows)
    links = links_of(schedule, network, 1000)
    assert links.bottleneck is not None
    assert links.name(links.bottleneck) == "host0.nic0.out"
    used = {links.name(link): share for link, share in enumerate(links.utilisation.tolist())}
    assert used == {"host0.nic0.out": 1.0, "host0.nic0.in": 0.0, "host1.nic0.out": 0.0, "host1.nic0.in": 1.0}


@pytest.mark.parametrize(
    ("network", "num_ranks", "names"),
    [
        (Network(1.0, 1.0), 2, ["rank0.out", "rank1.out", "rank0.in", "rank1.in"]),
        (PrivateLinks(1.0, 1.0), 3, ["rank0 -> rank1", "rank1 -> rank2", "rank2 -> rank0"]),
    ],
)
def test_links_of_a_uniform_network(network: AnyNetwork, num_ranks: int, names: list[str]) -> None:
    """Two ports a rank, or pairs; with a latency as long as the bytes take, a ring uses them half of the time."""
    links = links_of(build(Collective.ALL_GATHER, "ring", num_ranks), network, num_ranks)
    assert [links.name(link) for link in range(len(names))] == names
    assert links.utilisation.tolist() == [0.5] * len(names)


def test_cores_are_used_by_overheads_and_reductions_too() -> None:
    """On one core that does everything, nothing is left over: all of the time is used."""
    rank = '[rank]\nsend_overhead = "1us"\nreceive_overhead = "1us"\n'
    rank += 'copy_bandwidth = "1GB/s"\nreduce_bandwidth = "1GB/s"\n'
    links = links_of(build(Collective.ALL_REDUCE, "ring", 4), cluster(f"[host]\ncores = 1\n{rank}"), 4000)
    assert links.bottleneck is not None
    assert links.name(links.bottleneck) == "host0.cores"
    assert links.utilisation[0] == pytest.approx(1.0)


def test_without_time_nothing_is_used() -> None:
    """One rank, or no latency and no bytes: zeros, and no bottleneck."""
    links = links_of(build(Collective.ALL_REDUCE, "ring", 4), Network(0.0, 1.0), 0)
    assert links.utilisation.tolist() == [0.0] * 8
    assert links.bottleneck is None
    assert rank_usage(Timeline.empty(1, 1, 0)).busy_s.tolist() == [0.0]
