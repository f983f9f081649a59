"""Where ranks are, and what follows from it."""

import pytest

from ringsim.measurements.measurements import Measurements
from ringsim.measurements.provenance import RankHosts


def test_they_are_what_the_ranks_noted() -> None:
    """In the provenance, as lists, since it becomes JSON; nothing if nothing is noted there."""
    rank_hosts = RankHosts(physical_hosts=(0, 0, 1), hosts=(0, 1, 2))
    assert rank_hosts.as_dict() == {"machines": [0, 0, 1], "hosts": [0, 1, 2]}
    assert RankHosts.from_measurements(Measurements(3, {"cores": 2, **rank_hosts.as_dict()})) == rank_hosts
    assert RankHosts.from_measurements(Measurements(3, {"cores": 2})) is None


@pytest.mark.parametrize(
    ("physical_hosts", "hosts", "num_hosts", "one_clock"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0), 1, True),
        ((0, 0, 0, 0), (0, 0, 1, 2), 3, True),
        ((0, 1, 0, 1), (0, 1, 0, 1), 2, False),
        ((0, 0, 0, 1), (0, 1, 2, 3), 4, False),
    ],
)
def test_one_clock_is_one_physical_host(
    physical_hosts: tuple[int, ...], hosts: tuple[int, ...], num_hosts: int, one_clock: bool
) -> None:
    """However many hosts, as namespaces, are on it."""
    rank_hosts = RankHosts(physical_hosts, hosts)
    assert (rank_hosts.num_hosts, rank_hosts.one_clock) == (num_hosts, one_clock)


def test_ranks_per_host() -> None:
    """Only where all hosts but the last have as many, one host's after the other's."""
    even = ((0,), (0, 1, 2), (0, 0, 1, 1), (0, 0, 1, 1, 2))
    assert [RankHosts(hosts, hosts).ranks_per_host for hosts in even] == [1, 1, 2, 2]
    for hosts in ((0, 1, 0, 1), (0, 1, 1), (0, 0, 1, 2, 2)):
        with pytest.raises(ValueError, match="only hosts with as many ranks each, in order"):
            RankHosts(hosts, hosts).ranks_per_host  # noqa: B018  what it raises is the question


def test_the_last_rank_is_left_of_the_first() -> None:
    """As in a ring."""
    rank_hosts = RankHosts((0, 0, 0), (0, 0, 1))
    assert [rank_hosts.right_of(rank) for rank in range(3)] == [1, 2, 0]
