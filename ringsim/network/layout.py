"""`RankLayout`: which rank is on which host and which NIC."""

from dataclasses import dataclass

import numpy as np

from ringsim.network.spec import Host, Spec
from ringsim.network.topology import Ints


@dataclass(frozen=True, slots=True, eq=False)
class RankLayout:
    """The hosts by name, and for each rank its host and NIC.

    host_of_rank, nic_of_rank: (num_ranks,). host_of_nic: (num_nics,); the NICs of a host follow one another.
    """

    names: tuple[str, ...]
    hosts: tuple[Host, ...]
    host_of_rank: Ints
    nic_of_rank: Ints
    host_of_nic: Ints

    @property
    def nic_names(self) -> list[str]:
        """Such as host0.nic1."""
        counts = np.bincount(self.host_of_nic).tolist()
        return [f"{name}.nic{i}" for name, count in zip(self.names, counts, strict=True) for i in range(count)]


def lay_out(spec: Spec, num_ranks: int) -> RankLayout:
    """Place the ranks as the spec says. Raises ValueError if there is no room for them."""
    if num_ranks < 1:
        raise ValueError(f"num_ranks {num_ranks}: must be at least 1")
    if spec.max_ranks is not None and num_ranks > spec.max_ranks:
        raise ValueError(f"its hosts have {spec.max_ranks} ranks: {num_ranks} were asked for")
    return _as_listed(spec, num_ranks) if spec.placed_hosts else _all_alike(spec, num_ranks)


def _all_alike(spec: Spec, num_ranks: int) -> RankLayout:
    per_host = spec.ranks_per_host or num_ranks
    host_of_rank, place = np.divmod(np.arange(num_ranks), per_host)
    num_hosts = int(host_of_rank[-1]) + 1
    names = tuple(f"host{host}" for host in range(num_hosts))
    room = np.full(num_hosts, per_host)  # a rank has the NIC of its place, but no NIC idles that a rank could use
    room[-1] = min(per_host, max(int(place[-1]) + 1, spec.host.nics.count or per_host))
    return _with_nics(names, (spec.host,) * num_hosts, host_of_rank, place, room)


def _as_listed(spec: Spec, num_ranks: int) -> RankLayout:
    everyone = spec.max_ranks or 0
    host_of_rank, place = np.empty(everyone, dtype=np.int64), np.empty(everyone, dtype=np.int64)
    for host, placed in enumerate(spec.placed_hosts):
        host_of_rank[list(placed.ranks)] = host
        place[list(placed.ranks)] = np.arange(len(placed.ranks))
    names = tuple(placed.name for placed in spec.placed_hosts)
    hosts = tuple(placed.host for placed in spec.placed_hosts)
    sizes = np.array([len(placed.ranks) for placed in spec.placed_hosts])
    return _with_nics(names, hosts, host_of_rank[:num_ranks], place[:num_ranks], sizes)


def _with_nics(
    names: tuple[str, ...], hosts: tuple[Host, ...], host_of_rank: Ints, place: Ints, sizes: Ints
) -> RankLayout:
    """`place`: (num_ranks,), of a rank among those of its host; `sizes`: (num_hosts,), ranks that share its NICs."""
    counts = np.array([host.nics.count or size for host, size in zip(hosts, sizes.tolist(), strict=True)])
    first = np.cumsum(counts) - counts
    nic_of_rank = first[host_of_rank] + place * counts[host_of_rank] // sizes[host_of_rank]
    return RankLayout(names, hosts, host_of_rank, nic_of_rank, np.repeat(np.arange(len(hosts)), counts))
