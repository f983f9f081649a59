"""A network in few words, for the titles of pictures."""

from collections.abc import Mapping
from typing import Any

from ringsim.report.network_table import describe_network

UNIFORM = "every pair of ranks has a link of its own"  # without hosts nothing is shared


def network_facts(network: Mapping[str, Any]) -> list[str]:
    """Returns what `describe_network` does, and of a network without hosts what that means."""
    return describe_network(network) if "description" in network else [*describe_network(network), UNIFORM]


def named_network(network: Mapping[str, Any]) -> list[str]:
    """Returns the same after the name of the network, if it has one."""
    return [*([f"network {network['name']}"] if "name" in network else []), *network_facts(network)]
