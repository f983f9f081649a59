"""Where measurements come from: the command, and the hosts of the ranks."""

import sys

import pytest

from ringsim.measurements import Measurements, RankHosts, provenance


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ("/usr/bin/ringsim sweep --ranks 4", "ringsim sweep --ranks 4"),
        ("study.py 8", "study.py 8"),
        *((argv, "from Python") for argv in ("-c", "-", "", "/lib/ipykernel_launcher.py -f kernel.json")),
    ],
)
def test_the_command_can_be_typed(monkeypatch: pytest.MonkeyPatch, argv: str, command: str) -> None:
    """Or it says that there was none: `-c` alone would say nothing."""
    monkeypatch.setattr(sys, "argv", argv.split())
    assert provenance()["command"] == command


def test_hosts_are_what_the_ranks_noted() -> None:
    """In the provenance, as lists, since it becomes JSON; nothing if nothing is noted there."""
    rank_hosts = RankHosts(physical_hosts=(0, 0, 1), hosts=(0, 1, 2))
    assert rank_hosts.as_dict() == {"machines": [0, 0, 1], "hosts": [0, 1, 2]}
    assert RankHosts.from_measurements(Measurements(3, {"cores": 2, **rank_hosts.as_dict()})) == rank_hosts
    assert RankHosts.from_measurements(Measurements(3, {"cores": 2})) is None


def test_one_clock_is_one_physical_host() -> None:
    """However many hosts, as namespaces, are on it; the last rank is left of the first, as in a ring."""
    for machines, hosts, num_hosts, one_clock in (
        ((0, 0, 0, 0), (0, 0, 0, 0), 1, True),
        ((0, 0, 0, 0), (0, 0, 1, 2), 3, True),
        ((0, 1, 0, 1), (0, 1, 0, 1), 2, False),
        ((0, 0, 0, 1), (0, 1, 2, 3), 4, False),
    ):
        rank_hosts = RankHosts(machines, hosts)
        assert (rank_hosts.num_hosts, rank_hosts.one_clock) == (num_hosts, one_clock)
        assert [rank_hosts.right_of(rank) for rank in range(4)] == [1, 2, 3, 0]


def test_ranks_per_host() -> None:
    """The last host may have fewer."""
    even = ((0,), (0, 1, 2), (0, 0, 1, 1), (0, 0, 1, 1, 2))
    assert [RankHosts(hosts, hosts).ranks_per_host for hosts in even] == [1, 1, 2, 2]
