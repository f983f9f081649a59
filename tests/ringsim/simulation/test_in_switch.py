"""In-switch reduction: which messages the switch of a host adds up and copies, and which resources they use."""

import pytest

from ringsim import Collective, Schedule, Transfer, explain, load_network, predict_time
from ringsim.network import Host, Link, Network, Nics, Spec, Topology, Tuning
from ringsim.registry import build
from ringsim.simulation import QueuedCall, Runtime, has_contention, time_queue, with_in_network_reduction
from tests.ringsim.strategies import listed
from tests.ringsim.topologies import path

SHARE = 0.5


def hosts_of(size: int, share: float | None = SHARE) -> Network:
    """Hosts whose switches reach half of 1 GB/s when they add or copy, and NICs that are faster."""
    nics = Nics(bandwidth_bytes_per_s=1e10, count=size)
    host = Host(link=Link(bandwidth_bytes_per_s=1e9), nics=nics)
    return Network("mine", Spec(host=host, ranks_per_host=size, library=Tuning(switch_share=share)))


def uses(topology: Topology, transfer: Transfer) -> dict[str, float]:
    """Return the use of a byte of it, by resource."""
    return path(topology, transfer.src, transfer.dst, transfer.channel)[2]


def of(*steps: list[Transfer]) -> Schedule:
    """An all_reduce of one chunk on four ranks, as far as anybody asks."""
    return listed(*steps, num_ranks=4)


ADDED = [Transfer(src, 0, 0, True) for src in (1, 2, 3)]
COPIED = [Transfer(0, dst, 0, False, dst) for dst in (1, 2, 3)]


@pytest.mark.parametrize(
    ("transfers", "at_sender", "at_receiver"), [(ADDED, 4 / 3, 1 / 3), (COPIED, 1 / 3, 4 / 3)], ids=["added", "copied"]
)
def test_messages_are_one_at_their_common_end(transfers: list[Transfer], at_sender: float, at_receiver: float) -> None:
    """Three fill its port as one; the switch also reads what it has itself, for which the others' ports stand in."""
    topology = with_in_network_reduction([of(transfers)], hosts_of(4).topology(4))
    for transfer in transfers:
        expected = {f"rank{transfer.src}.out": at_sender / SHARE, f"rank{transfer.dst}.in": at_receiver / SHARE}
        assert uses(topology, transfer) == pytest.approx(expected)


APART = {
    "no switch adds": (hosts_of(4, share=None), of(ADDED)),
    "they are on four hosts": (hosts_of(1), of(ADDED)),
    "they are in three steps": (hosts_of(4), of(*([transfer] for transfer in ADDED))),
    "others are on the connections": (hosts_of(4), of(ADDED, *([Transfer(src, 0, 0, False)] for src in (1, 2, 3)))),
}


@pytest.mark.parametrize("name", APART)
def test_all_else_goes_by_itself(name: str) -> None:
    """A connection is merged only if all its messages can be."""
    cluster, schedule = APART[name]
    plain = cluster.topology(4)
    topology = with_in_network_reduction([schedule], plain)
    assert all(uses(topology, transfer) == uses(plain, transfer) for transfer in ADDED)


def test_a_ring_has_nothing_for_a_switch() -> None:
    """Nor has any in which a rank sends and receives one message in a step; the topology stays as it is."""
    topology = hosts_of(4).topology(4)
    assert with_in_network_reduction([build(Collective.ALL_REDUCE, "ring", 4)], topology) is topology


def test_only_the_ranks_of_a_host_are_added_up() -> None:
    """Of three senders two are on the host of the receiver."""
    topology = with_in_network_reduction([of(ADDED)], hosts_of(3).topology(4))
    assert uses(topology, ADDED[0]) == pytest.approx({"rank1.out": 3 / 2 / SHARE, "rank0.in": 1 / 2 / SHARE})
    assert uses(topology, ADDED[2]) == {"host1.nic0.out": 1.0, "host0.nic0.in": 1.0}


def test_schedules_of_a_queue_must_agree() -> None:
    """A second schedule that uses the connection in another way takes the gain from both."""
    both = with_in_network_reduction([of(ADDED), of([Transfer(1, 0, 0, True)])], hosts_of(4).topology(4))
    assert uses(both, ADDED[0]) == {"rank1.out": 1.0, "rank0.in": 1.0}
    assert uses(both, ADDED[1])["rank0.in"] == pytest.approx(1 / 3 / SHARE)


@pytest.mark.parametrize("num_ranks", [3, 4, 8])
def test_nvls_moves_the_data_once_and_a_share_more(num_ranks: int) -> None:
    """(1 + 1/n) S over the bandwidth, but for a segment at both ends; two-shot, not in the switch, 2 (n - 1)/n S."""
    cluster, size = hosts_of(num_ranks), 32 * 840 * 2**10
    schedule = build(Collective.ALL_REDUCE, "nvls", num_ranks, size)
    assert has_contention(schedule, with_in_network_reduction([schedule], cluster.topology(num_ranks)))
    least_s = (1 + 1 / num_ranks) * size / (SHARE * 1e9)
    time_s = predict_time(schedule, cluster, size)
    assert least_s <= time_s <= 1.05 * least_s
    for num_workers in (1, 2):  # of a queue, of which the second has nothing to do
        [span] = time_queue([QueuedCall(schedule, size)], cluster, Runtime(num_workers=num_workers))
        assert span.end_s == pytest.approx(time_s)
    shot_s = predict_time(build(Collective.ALL_REDUCE, "two_shot", num_ranks), cluster, size)
    assert shot_s == pytest.approx(2 * (num_ranks - 1) / num_ranks * size / 1e9)


def test_no_port_is_used_by_more_than_there_is() -> None:
    """The table of links counts what the switch adds up once."""
    size = 2**32
    explanation = explain(build(Collective.ALL_REDUCE, "nvls", 8, size), load_network("dgx-h100"), size)
    assert 0.9 < explanation.links.utilisation.max() <= 1 + 1e-9
    assert sum(explanation.path.shares().values()) == pytest.approx(1.0)
