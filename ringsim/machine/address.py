"""The address at which Gloo listens, and whether others can reach it there."""

import ipaddress
import socket


def gloo_address(host_name: str) -> str | None:
    """Returns the first address of the name to which a socket can be bound here: Gloo's choice; None without one."""
    try:
        addresses = socket.getaddrinfo(host_name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, place in addresses:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(place)
        except OSError:
            continue
        return str(place[0])
    return None


def is_loopback(address: str) -> bool:
    """Returns whether an address, or the name localhost, leads to this host alone."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # a name
        return False
