"""`Landmarks`: what of a network a reader looks for in a picture: its hosts, and what is slow or fails."""

from dataclasses import dataclass, field
from typing import Self

from ringsim.network.catalogue import failure_name
from ringsim.network.cluster import Cluster
from ringsim.network.layout import lay_out
from ringsim.network.spec import SlowLink
from ringsim.network.topology import NONE, AnyNetwork, Ints, Topology
from ringsim.units import format_rate, format_time


@dataclass(frozen=True, slots=True)
class Landmarks:
    """What is special of a network, for one number of ranks; nothing where all pairs of ranks are alike.

    host_of_rank: names, (num_ranks,); empty unless some host has several ranks and there are several hosts.
    slow_ranks: how many times as long each of them takes. slow_links, failures: what is said of each, by its name.
    """

    host_of_rank: tuple[str, ...] = ()
    slow_ranks: dict[int, float] = field(default_factory=dict)
    slow_links: dict[str, str] = field(default_factory=dict)
    failures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, network: AnyNetwork, num_ranks: int) -> Self:
        """Returns those of any network."""
        if not isinstance(network, Cluster):
            return cls()
        spec, layout = network.spec, lay_out(network.spec, num_ranks)
        hosts = tuple(layout.names[host] for host in layout.host_of_rank.tolist())
        slow_ranks: dict[int, float] = {}
        for slow in spec.slow_ranks:
            slow_ranks[slow.rank] = slow_ranks.get(slow.rank, 1.0) * slow.slowdown
        return cls(
            host_of_rank=hosts if 1 < len(set(hosts)) < num_ranks else (),
            slow_ranks=slow_ranks,
            slow_links={slow.link: _slowness(slow) for slow in spec.slow_links},
            failures={failure_name(failure): failure.at_s for failure in spec.failures},
        )

    def slow_link_of(self, topology: Topology, src: Ints, dst: Ints) -> list[str]:
        """Returns for each pair the first slow link on its path; empty where there is none."""
        names = topology.resources.names
        slow = {names.index(name): name for name in self.slow_links if name in names}
        if not slow or not len(src):
            return [""] * len(src)
        paths = topology.paths(src, dst).resource.tolist()
        return [next((slow[used] for used in path if used != NONE and used in slow), "") for path in paths]


def _slowness(slow: SlowLink) -> str:
    parts = [] if slow.bandwidth_bytes_per_s is None else [format_rate(slow.bandwidth_bytes_per_s)]
    parts += [f"{slow.slowdown:g} times slower"] if slow.slowdown != 1 else []
    parts += [f"{format_time(slow.latency_s)} more latency"] if slow.latency_s else []
    return ", ".join(parts)
