"""Slow parts of a network, and runs that failures keep from finishing."""

import json
from pathlib import Path

import pytest

from ringsim import Collective, Network, Schedule, Transfer, load_network
from ringsim.analysis.faults import BlockedRun, find_blocked, find_slow_parts, format_blocked, format_slow_parts
from ringsim.network.file import read_network
from ringsim.registry import build
from ringsim.simulation import simulate
from tests.ringsim.made_networks import network_of_nics


def failing(failure: str) -> Network:
    """Hosts of one rank each, something of which fails."""
    hosts = '[host]\nranks = 1\ncores = 1\nnic.bandwidth = "1GB/s"\n[rank]\nreduce_bandwidth = "1GB/s"\n'
    return read_network(f"{hosts}[[failure]]\n{failure}\n", "test.toml")


def blocked_in(schedule: Schedule, network: Network, size: int) -> BlockedRun:
    """How its run comes to a stop."""
    return find_blocked(simulate(schedule, network, size), network.topology(schedule.num_ranks))


def test_what_fails_is_named() -> None:
    """Nothing gets to or from a rank; a message that has arrived is never added without cores."""
    cores = 'link = "host0.cores"\nat = "2.5us"'
    for failure, collective, num_ranks, failed, ranks in (
        ("rank = 2", "all_gather", 3, ("rank2", 0.0), [(0, "sends"), (1, "sends"), (2, "sends")]),
        (cores, "reduce", 2, ("host0.cores", 2.5e-6), [(0, "adds")]),
    ):
        blocked = blocked_in(build(Collective(collective), "direct", num_ranks), failing(failure), 1000 * num_ranks)
        assert (blocked.failed, [(rank.rank, rank.doing) for rank in blocked.ranks]) == ((failed,), ranks)


def test_what_finishes_in_time_is_not_blocked() -> None:
    """The failure comes after the end."""
    late = failing('rank = 0\nat = "1s"')
    assert find_blocked(simulate(build(Collective.ALL_REDUCE, "ring", 3), late, 300), late.topology(3)) is None


def test_as_text_and_json() -> None:
    """Of many ranks the first are named, the rest counted; no infinity in JSON."""
    blocked = blocked_in(build(Collective.ALL_REDUCE, "ring", 12), failing('link = "host1.nic0.out"'), 12000)
    assert format_blocked(blocked)[-1] == "and 4 more ranks"
    found = json.loads(json.dumps(blocked.as_dict(), allow_nan=False))
    assert found["first"][0] == {"step": 0, "src": 1, "dst": 2, "chunk": 0}
    assert found["failed"] == [{"name": "host1.nic0.out", "failed_at_s": 0.0}]


@pytest.mark.parametrize(
    ("rates", "slow"),
    [((10, 1), "b"), ((1, 1, 10), ""), ((10, 10, 9.9), ""), ((10, 1, 2, 10, 10), "bc"), ((1, 10, 1, 10), "ac")],
)
def test_slow_is_what_most_others_are_not(rates: tuple[float, ...], slow: str) -> None:
    """Of two NICs the slower one; not all others where one is faster; the slowest first, with its rate and theirs."""
    schedule = build(Collective.ALL_REDUCE, "direct", len(rates))
    slow_parts = find_slow_parts(schedule, network_of_nics(*rates), 2**22)
    assert [part.name for part in slow_parts.parts] == [f"the NIC of host {name}" for name in slow]
    assert format_slow_parts(slow_parts).count("MB/s, most give 1.25 GB/s") == len(slow)


def test_a_slow_cable_is_named_if_a_transfer_takes_it() -> None:
    """A ring over two pairs of hosts does; a schedule within one of them does not."""
    network = load_network(Path(__file__).parents[3] / "docs" / "networks" / "cables.toml")
    ring = find_slow_parts(build(Collective.ALL_REDUCE, "ring", 4), network, 2**22)
    assert "; the link between left and right gives 125 MB/s, most give 1.25 GB/s" in format_slow_parts(ring)
    assert [(pair.src, pair.dst) for pair in ring.pairs] == [(1, 2), (3, 0)]
    steps = [[Transfer(0, 1, 0, False)], [Transfer(1, 0, 0, False)]]
    within = Schedule.from_transfers(Collective.BROADCAST, "within", 4, 1, steps)
    assert find_slow_parts(within, network, 2**22).parts == ()
