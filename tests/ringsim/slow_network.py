"""A network of NCCL's with a slow link, so that its formula does not tell the times, and calls are simulated."""

from pathlib import Path

from ringsim.network import SlowLink, load_network, network_text


def with_a_slow_link(name: str, folder: Path) -> str:
    """Return the file of a preset whose first NIC sends at 10 GB/s."""
    slow = SlowLink("host0.nic0.out", bandwidth_bytes_per_s=10e9)
    file = folder / "slow.toml"
    file.write_text(network_text(load_network(name).with_spec(slow_links=(slow,))))
    return str(file)
