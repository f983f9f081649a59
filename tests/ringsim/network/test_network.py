"""`Network`: a port for each rank."""

import math
from dataclasses import replace

import pytest

from ringsim import Network
from tests.ringsim.topologies import path

PORTS = Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=math.inf, gap_s=1e-6)


def test_a_rank_has_one_port_each_way() -> None:
    """A message takes that of its sender and that of its receiver, byte by byte."""
    topology = PORTS.topology(3)
    assert topology.resources.names == ("rank0.out", "rank1.out", "rank2.out", "rank0.in", "rank1.in", "rank2.in")
    assert topology.resources.capacity.tolist() == [1e9] * 6
    assert path(topology, 0, 1) == (1e-5, math.inf, {"rank0.out": 1, "rank1.in": 1})
    assert path(topology, 2, 0) == (1e-5, math.inf, {"rank2.out": 1, "rank0.in": 1})


def test_ports_without_limit_are_no_resources() -> None:
    """A message takes no time, whatever else is sent."""
    topology = replace(PORTS, bandwidth_bytes_per_s=math.inf).topology(3)
    assert (topology.resources.names, path(topology, 0, 1)) == ((), (1e-5, math.inf, {}))


def test_a_network_is_read_as_it_was_written() -> None:
    """With infinity as None."""
    assert PORTS.as_dict()["reduce_bytes_per_s"] is None
    assert Network.from_dict(PORTS.as_dict()) == PORTS


def test_private_links_of_older_versions_are_refused() -> None:
    """With what to do instead; ports could be named there, too."""
    assert Network.from_dict({**PORTS.as_dict(), "private_links": False}) == PORTS
    with pytest.raises(ValueError, match=r"private_links: .* describe hosts with a cable between each two"):
        Network.from_dict({**PORTS.as_dict(), "private_links": True})


def test_only_a_choice_is_named() -> None:
    """The description leaves out all defaults."""
    assert repr(PORTS) == "Network(latency_s=1e-05, bandwidth_bytes_per_s=1000000000.0, gap_s=1e-06)"
