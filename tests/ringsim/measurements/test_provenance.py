"""Tests of `ringsim.measurements.provenance`."""

import re
import sys

import pytest

from ringsim.measurements.measurements import Measurements
from ringsim.measurements.provenance import RankHosts, provenance


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/usr/bin/ringsim", "sweep", "--ranks", "4"], "ringsim sweep --ranks 4"),
        (["study.py", "8"], "study.py 8"),
        (["-c"], "from Python"),
        (["-"], "from Python"),
        ([], "from Python"),
        (["/lib/ipykernel_launcher.py", "-f", "kernel.json"], "from Python"),
    ],
)
def test_the_command_can_be_typed(monkeypatch: pytest.MonkeyPatch, argv: list[str], command: str) -> None:
    """Or it says that there was none: `-c` alone would say nothing."""
    monkeypatch.setattr(sys, "argv", argv)
    assert provenance()["command"] == command


def test_hosts_are_what_the_ranks_noted() -> None:
    """In the provenance, as lists, since it becomes JSON; nothing if nothing is noted there."""
    rank_hosts = RankHosts(physical_hosts=(0, 0, 1), hosts=(0, 1, 2))
    assert rank_hosts.as_dict() == {"machines": [0, 0, 1], "hosts": [0, 1, 2]}
    assert RankHosts.from_measurements(Measurements(3, {"cores": 2, **rank_hosts.as_dict()})) == rank_hosts
    assert RankHosts.from_measurements(Measurements(3, {"cores": 2})) is None
    for machines, hosts, message in (
        ([0], [0, 0, 0], "provenance.machines = [0]: must be a list of 3 numbers"),
        (3, [0, 0, 0], "provenance.machines = 3: must be a list"),
        ([0, 0, 0], [0, 9, 0], "provenance.hosts[1] = 9: must be a whole num"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            RankHosts.from_measurements(Measurements(3, {"machines": machines, "hosts": hosts}))


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
    """Only where all hosts but the last have as many, one host's after the other's."""
    even = ((0,), (0, 1, 2), (0, 0, 1, 1), (0, 0, 1, 1, 2))
    assert [RankHosts(hosts, hosts).ranks_per_host for hosts in even] == [1, 1, 2, 2]
    for hosts in ((0, 1, 0, 1), (0, 1, 1), (0, 0, 1, 2, 2)):
        with pytest.raises(ValueError, match="only hosts with as many ranks each, in order"):
            RankHosts(hosts, hosts).ranks_per_host  # noqa: B018  what it raises is the question
