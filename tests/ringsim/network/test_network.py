"""`Network`: a port for each rank, or a link for each pair."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ringsim import Network
from ringsim.network import NONE, Topology

PORTS = Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=math.inf, gap_s=1e-6)
SRC, DST = np.array([0, 2]), np.array([1, 0])


def used(topology: Topology) -> list[list[str]]:
    """Of each path from SRC to DST, the resources."""
    paths = topology.paths(SRC, DST)
    return [[topology.resources.names[number] for number in row if number != NONE] for row in paths.resource.tolist()]


def test_a_rank_has_one_port_each_way() -> None:
    """A message takes that of its sender and that of its receiver, byte by byte."""
    topology = PORTS.topology(3)
    assert topology.resources.names == ("rank0.out", "rank1.out", "rank2.out", "rank0.in", "rank1.in", "rank2.in")
    assert topology.resources.capacity.tolist() == [1e9] * 6
    assert used(topology) == [["rank0.out", "rank1.in"], ["rank2.out", "rank0.in"]]
    paths = topology.paths(SRC, DST)
    assert paths.use_per_byte.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert paths.alone_bytes_per_s(topology.resources).tolist() == [1e9, 1e9]


@pytest.mark.parametrize(
    ("network", "bytes_per_s"),
    [(replace(PORTS, private_links=True), 1e9), (replace(PORTS, bandwidth_bytes_per_s=math.inf), math.inf)],
)
def test_private_links_and_ports_without_limit_are_no_resources(network: Network, bytes_per_s: float) -> None:
    """Each message goes at the rate of a link, whatever else is sent."""
    topology = network.topology(3)
    assert (topology.resources.names, used(topology)) == ((), [[], []])
    assert topology.paths(SRC, DST).alone_bytes_per_s(topology.resources).tolist() == [bytes_per_s] * 2


@pytest.mark.parametrize("network", [PORTS, replace(PORTS, private_links=True)])
def test_a_network_is_read_as_it_was_written(network: Network) -> None:
    """With infinity as None."""
    assert network.as_dict()["reduce_bytes_per_s"] is None
    assert Network.from_dict(network.as_dict()) == network


def test_networks_of_older_versions_had_private_links() -> None:
    """They did not say so."""
    older = {name: value for name, value in PORTS.as_dict().items() if name != "private_links"}
    assert Network.from_dict(older) == replace(PORTS, private_links=True)


def test_only_a_choice_is_named() -> None:
    """A port is what one expects."""
    assert "private_links" not in repr(PORTS)
    assert repr(replace(PORTS, private_links=True)).endswith(", private_links=True)")
