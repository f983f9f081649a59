"""Where Gloo would wait for other ranks on this host, and whether other nodes can reach it there."""

import socket
from collections.abc import Mapping

from ringsim.machine import gloo_address, is_loopback


def check_reachable(environment: Mapping[str, str]) -> None:
    """For ranks on several nodes. Raises ValueError if Gloo would wait for the others where only this host can come.

    Unless an interface is named, Gloo takes the address that the host's name leads to. Many systems, Debian among them,
    have that name as 127.0.1.1 in /etc/hosts: then ranks of other nodes are told to connect to themselves.
    """
    if environment.get("GLOO_SOCKET_IFNAME") or is_loopback(environment["MASTER_ADDR"]):
        return  # all "nodes" on one host, which has been asked for
    name = socket.gethostname()
    address = gloo_address(name)
    if address is None or is_loopback(address):
        leads = "leads to no address of it" if address is None else f"leads to {address}, which is the host itself"
        raise ValueError(
            f"the name of this host, {name}, {leads}: no other node can reach it there; "
            f"set GLOO_SOCKET_IFNAME to the interface that leads to the others, such as eth0 (ip -br address)"
        )
