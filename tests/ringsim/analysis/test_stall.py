"""Tests of `ringsim.analysis.stall`."""

import json

import numpy as np
import pytest

from ringsim import Cluster, Collective, Network, Schedule
from ringsim.analysis.stall import Stall, Stuck, find_stall, format_stall
from ringsim.network.file_reader import read_network
from ringsim.registry import build
from ringsim.simulation import simulate

HOSTS = '[host]\nranks = 1\n[host.nic]\nbandwidth = "1GB/s"\n[rank]\nreduce_bandwidth = "1GB/s"\n'


def cluster(failure: str) -> Cluster:
    """Hosts of one rank each, something of which fails."""
    return read_network(f"{HOSTS}[[failure]]\n{failure}\n", "test.toml")


def stall_of(schedule: Schedule, network: Cluster, size: int) -> Stall:
    """How its run comes to a stop."""
    stall = find_stall(simulate(schedule, network, size), network.topology(schedule.num_ranks))
    assert stall is not None
    return stall


def test_who_waits_for_what() -> None:
    """In a ring of 3 rank 1 cannot send any more: rank 2 waits for it, and rank 0 for rank 2."""
    # 1 us to send, 1 us to add: the second step would send from 2 us on.
    stall = stall_of(build(Collective.ALL_REDUCE, "ring", 3), cluster('link = "host1.nic0.out"\nat = "2.5us"'), 3000)
    assert stall.first[0] == Stuck(step=1, src=1, dst=2, chunk=2)
    assert stall.failed == (("host1.nic0.out", 2.5e-6),)
    by_rank = {rank.rank: rank for rank in stall.ranks}
    assert [(by_rank[rank].doing, by_rank[rank].peer) for rank in range(3)] == [
        ("waits", 2),
        ("sends", 2),
        ("waits", 1),
    ]
    assert by_rank[1].failed == ("host1.nic0.out",)
    assert by_rank[2].last_active_s == pytest.approx(3e-6)
    assert stall.num_transfers == 12
    assert 3 < stall.num_unfinished < 12


def test_a_rank_that_fails_is_named() -> None:
    """Nothing gets to or from it."""
    stall = stall_of(build(Collective.ALL_GATHER, "direct", 3), cluster("rank = 2"), 3000)
    assert stall.failed == (("rank2", 0.0),)
    assert stall.num_unfinished == 4
    assert [(rank.rank, rank.doing) for rank in stall.ranks] == [(0, "sends"), (1, "sends"), (2, "sends")]


def test_cores_that_fail_stop_what_is_added() -> None:
    """The message has arrived; its reduction never ends."""
    network = read_network(
        '[host]\nranks = 1\ncores = 1\n[rank]\nreduce_bandwidth = "1GB/s"\n[host.nic]\nbandwidth = "1GB/s"\n'
        '[[failure]]\nlink = "host0.cores"\nat = "2.5us"\n',
        "test.toml",
    )
    stall = stall_of(build(Collective.REDUCE, "direct", 2), network, 2000)
    assert [(rank.rank, rank.doing, rank.peer) for rank in stall.ranks] == [(0, "adds", 1)]
    assert stall.failed == (("host0.cores", 2.5e-6),)


def test_what_finishes_in_time_has_no_stall() -> None:
    """A failure after the end, or none at all."""
    schedule = build(Collective.ALL_REDUCE, "ring", 3)
    late = cluster('rank = 0\nat = "1s"')
    assert find_stall(simulate(schedule, late, 300), late.topology(3)) is None
    network = Network(1.0, 1.0)
    assert find_stall(simulate(schedule, network, 3), network.topology(3)) is None


def test_as_text_and_json() -> None:
    """A line for what failed and one for each of the first ranks; no infinity in JSON."""
    stall = stall_of(build(Collective.ALL_REDUCE, "ring", 12), cluster('link = "host1.nic0.out"'), 12000)
    lines = format_stall(stall)
    assert lines[:2] == [
        f"{stall.num_unfinished} of 264 transfers cannot happen, from step 0, rank 1 -> 2, chunk 0; "
        f"nothing ends after {stall.until_s * 1e6:.4g} us",
        "host1.nic0.out failed at 0 ns",
    ]
    assert "rank 1 was last active at" in lines[3]
    assert lines[3].endswith("and sends to rank 2 without end: chunk 0, step 0")
    assert lines[-1] == "and 4 more ranks"
    found = json.loads(json.dumps(stall.as_dict(), allow_nan=False))
    assert found["first"][0] == {"step": 0, "src": 1, "dst": 2, "chunk": 0}
    assert found["failed"] == [{"name": "host1.nic0.out", "failed_at_s": 0.0}]
    assert np.isfinite([rank["last_active_s"] for rank in found["ranks"]]).all()
