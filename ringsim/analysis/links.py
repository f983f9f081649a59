"""`Links`: the pairs of ranks on which it makes sense to send, and what a byte takes of each resource on the way."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ringsim.network import NONE, AnyNetwork, Floats, Ints, Topology, lay_out, require_sound
from ringsim.schedule import Bools

MAX_PAIRS = 2**19  # of ranks; those of 724 ranks, which take some seconds


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Pairs of ranks, a row each.

    src, dst: (num_links,). fixed_s: (num_links,), what a message takes besides its bytes: overheads and latency.
    send_s, receive_s: (num_links,), the overheads in that, of its sender and of its receiver.
    resource: (num_links, width), NONE where the row is shorter. s_per_byte: (num_links, width), the seconds of that
    resource which a byte takes; 0 where there is no resource.
    alone_s_per_byte: (num_links,), of a message that shares nothing.
    names: of the resources. burst_bytes: (num_resources,), that a token bucket lets pass at once.
    """

    num_ranks: int
    src: Ints
    dst: Ints
    fixed_s: Floats
    send_s: Floats
    receive_s: Floats
    resource: Ints
    s_per_byte: Floats
    alone_s_per_byte: Floats
    names: tuple[str, ...]
    burst_bytes: Floats

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """Return the links between all pairs of ranks.

        Raises ValueError for more pairs than `MAX_PAIRS`, and for costs that cannot be.
        """
        num_ranks = topology.num_ranks
        if num_ranks * (num_ranks - 1) > MAX_PAIRS:
            raise ValueError(
                f"{num_ranks} ranks have more than {MAX_PAIRS:,} pairs: at most that many are examined one by one"
            )
        require_sound(topology)
        src, dst = np.nonzero(~np.eye(num_ranks, dtype=np.bool_))
        paths, processors = topology.paths(src, dst), topology.processors
        paths.check()
        is_used = (paths.resource != NONE) & (paths.use_per_byte > 0)
        s_per_byte = np.zeros(paths.resource.shape)
        s_per_byte[is_used] = paths.use_per_byte[is_used] / topology.resources.capacity[paths.resource[is_used]]
        resource = np.where(is_used & (s_per_byte > 0), paths.resource, NONE)
        send_s, receive_s = processors.send_overhead_s[src], processors.receive_overhead_s[dst]
        fixed_s = send_s + paths.latency_s + receive_s
        alone = 1 / paths.alone_bytes_per_s(topology.resources)
        names, burst = topology.resources.names, topology.resources.burst_bytes
        return cls(num_ranks, src, dst, fixed_s, send_s, receive_s, resource, s_per_byte, alone, names, burst)

    def rows(self, chosen: Bools) -> "Links":
        """Return these of the links."""
        columns = ("src", "dst", "fixed_s", "send_s", "receive_s", "resource", "s_per_byte", "alone_s_per_byte")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    def reversed(self) -> "Links":
        """Return the same links, each of which leads the other way."""
        return replace(self, src=self.dst, dst=self.src, send_s=self.receive_s, receive_s=self.send_s)

    def without_detours(self) -> "Links":
        """Return the links without those that do no more than others one after the other, through ranks on the way.

        These are routes over several cables between hosts, each of which joins two ranks: whatever takes the route may
        as well stop at the ranks, and be passed on.
        """
        used = self.resource != NONE
        direct = used.sum(axis=1) == 1
        if not direct.any() or direct.all():
            return self
        only = self.resource[direct].max(axis=1)
        ends = np.full((len(self.names) + 1, 2), NONE)  # the last row is that of NONE
        ends[only] = np.column_stack([self.src[direct], self.dst[direct]])
        at, is_detour = self.src.copy(), ~direct
        for column, on_way in zip(self.resource.T, used.T, strict=True):
            first, second = ends[column].T
            is_joined = (at == first) | (at == second)
            is_detour &= is_joined | ~on_way
            at = np.where(on_way & is_joined, first + second - at, at)
        return self.rows(~(is_detour & (at == self.dst)))

    def spread(self) -> tuple[Ints, Ints]:
        """Return, for each resource, how many ranks send over it and how many receive, (num_resources,) each."""
        of_src, of_dst = (self._uses(end) > 0 for end in (self.src, self.dst))
        return of_src.sum(axis=0), of_dst.sum(axis=0)

    def nearness_to_src(self) -> Floats:
        """Return a number for each resource of each link, (num_links, width), by which those of a link can be sorted.

        It is the larger, the more of what leaves the sender and the less of what comes to the receiver goes there.
        """
        shares = []
        for end in (self.src, self.dst):
            uses, links_of_rank = self._uses(end), np.bincount(end, minlength=self.num_ranks)
            shares.append(uses[end[:, None], self.resource] / links_of_rank[end][:, None])
        return np.where(self.resource == NONE, -np.inf, shares[0] - shares[1])

    def _uses(self, end: Ints) -> Ints:
        """Return how many links of each rank use each resource, (num_ranks, num_resources); end: `src` or `dst`."""
        used = self.resource != NONE
        ranks = np.broadcast_to(end[:, None], used.shape)[used]
        size = self.num_ranks, len(self.names)
        return np.bincount(ranks * size[1] + self.resource[used], minlength=size[0] * size[1]).reshape(size)


def groups_of_ranks(network: AnyNetwork, num_ranks: int) -> list[Ints]:
    """Return how the network groups its ranks: each by itself, by hosts, by leaf switches; (num_ranks,) each."""
    host = lay_out(network.spec, num_ranks).host_of_rank
    grouped = [np.arange(num_ranks), host]
    if per_leaf := network.spec.switch.hosts_per_leaf:
        grouped.append(host // per_leaf)
    return grouped
