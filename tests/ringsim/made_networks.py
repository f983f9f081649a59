"""Networks with something wrong, which tests make of a few lines."""

from pathlib import Path
from typing import Any

from ringsim.libraries import Call, Plan
from ringsim.libraries.library import NCCL
from ringsim.network import Network, SlowLink, load_network, network_text, read_network
from ringsim.schedule import Collective
from tests.ringsim.commands import written

HOSTS = """
[host]
ranks = {ranks_per_host}
[host.link]
latency = "1us"
bandwidth = "10GB/s"
[host.nic]
latency = "5us"
bandwidth = "1GB/s"
[rank]
reduce_bandwidth = "5GB/s"
"""


def made_network(trouble: str = "", ranks_per_host: int = 1) -> Network:
    """Hosts of so many ranks, and the tables of what is slow or fails."""
    return read_network(f"{HOSTS.format(ranks_per_host=ranks_per_host)}\n{trouble}\n", "test.toml")


def network_of_nics(*gbit_per_s: float) -> Network:
    """Hosts a, b, c and so on of one rank, each with a NIC of its own rate."""
    hosts = [
        f'[[hosts]]\nname = "{chr(ord("a") + rank)}"\nranks = [{rank}]\nnic.bandwidth = "{rate}Gbit/s"'
        for rank, rate in enumerate(gbit_per_s)
    ]
    return read_network("\n".join(hosts), "nics.toml")


SLOW_LINK = '[[slow_link]]\nlink = "host2.nic0.out"\nslowdown = 4'
SLOW_RANK = "[[slow_rank]]\nrank = 1\nslowdown = 3"
DEAD_LINK = '[[failure]]\nlink = "host2.nic0.out"\nat = "300us"'


def with_a_slow_link(name: str, folder: Path) -> str:
    """Return the file of a preset whose first NIC sends at 10 GB/s, so that NCCL's formula does not tell its times."""
    slow = SlowLink("host0.nic0.out", bandwidth_bytes_per_s=10e9)
    return str(written(folder / "slow.toml", network_text(load_network(name).with_spec(slow_links=(slow,)))))


def choose(network: Network, collective: Collective, num_ranks: int, size_bytes: int, **limits: Any) -> Plan:
    """Return NCCL's choice for ranks that fill the hosts of a network, or `ranks_per_host` of them."""
    per_host = limits.pop("ranks_per_host", None)
    return NCCL.choose(network, Call.on(network, collective, num_ranks, size_bytes, per_host), **limits)
