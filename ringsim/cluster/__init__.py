"""Networks of hosts: read from TOML, shown to the engines as a `Machine`."""

from ringsim.cluster.cluster import Cluster
from ringsim.cluster.network_file import read_network
from ringsim.cluster.presets import load_network, preset_names

__all__ = ["Cluster", "load_network", "preset_names", "read_network"]
