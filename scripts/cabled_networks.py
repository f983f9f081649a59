"""Networks for tests and benchmarks of synthesis: hosts joined by cables, or behind NICs and uplinks."""

from collections.abc import Iterable
from itertools import product
from math import prod

from ringsim.network import Network, read_network

Pairs = Iterable[tuple[int, int]]


def cabled(num_ranks: int, pairs: Pairs, latency: str = "1us") -> Network:
    """Return hosts of one rank, joined by equal cables."""
    hosts = [f'[[hosts]]\nname = "h{rank}"\nranks = [{rank}]' for rank in range(num_ranks)]
    links = [
        f'[[links]]\nbetween = ["h{one}", "h{other}"]\nlatency = "{latency}"\nbandwidth = "10Gbit/s"'
        for one, other in pairs
    ]
    return read_network("\n".join([*hosts, *links]), "cabled.toml")


def torus(*lengths: int, missing: int = 0) -> Network:
    """Return a torus without its first cables."""
    places = {place: rank for rank, place in enumerate(product(*map(range, lengths)))}
    pairs = set()
    for place, rank in places.items():
        for axis, length in enumerate(lengths):
            other = places[(*place[:axis], (place[axis] + 1) % length, *place[axis + 1 :])]
            pairs.add((min(rank, other), max(rank, other)))
    return cabled(prod(lengths), sorted(pairs)[missing:])


def hypercube(dimension: int) -> Network:
    """Return ranks with cables between numbers that differ in one binary digit."""
    ranks = range(2**dimension)
    return cabled(len(ranks), [(rank, rank | 1 << bit) for rank in ranks for bit in range(dimension)
                               if not rank >> bit & 1])  # fmt: skip


def fully_connected(num_ranks: int) -> Network:
    """Return hosts with a cable between every two."""
    return cabled(num_ranks, [(one, other) for other in range(num_ranks) for one in range(other)])


def star(slow_host: int | None = None) -> Network:
    """Return hosts of one rank on a switch. slow_host: its NIC has a quarter of the bandwidth."""
    return _with_a_slow_nic('[host]\nranks = 1\n[host.nic]\nlatency = "1us"\nbandwidth = "10Gbit/s"', slow_host)


def hosts(ranks: int, nics: int = 1, slow_host: int | None = None) -> Network:
    """Return hosts of several ranks with fast links inside."""
    return _with_a_slow_nic(
        f'[host]\nranks = {ranks}\n[host.link]\nlatency = "1us"\nbandwidth = "100GB/s"\n'
        f'[host.nic]\ncount = {nics}\nlatency = "2us"\nbandwidth = "200Gbit/s"',
        slow_host,
    )


def islands(hosts_per_leaf: int) -> Network:
    """Return hosts of one rank behind uplinks that are no faster than one NIC."""
    return read_network(
        '[host]\nranks = 1\n[host.nic]\nlatency = "1us"\nbandwidth = "10Gbit/s"\n'
        f'[switch]\nhosts = {hosts_per_leaf}\nuplink = "10Gbit/s"\nlatency = "1us"\n',
        "islands.toml",
    )


def _with_a_slow_nic(text: str, host: int | None) -> Network:
    ways = [] if host is None else ["in", "out"]
    slow = [f'[[slow_link]]\nlink = "host{host}.nic0.{way}"\nslowdown = 4' for way in ways]
    return read_network("\n".join([text, *slow]), "hosts.toml")
