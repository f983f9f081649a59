"""`Call`: a collective whose time is predicted; `CallColumns`: many of them as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ringsim.algorithms import RanksPerHost, fill_hosts
from ringsim.measurements import CHAIN_TESTS, MESSAGE_TESTS, NOT_KNOWN, PT2PT_BANDWIDTH, SENDRECV, TESTS, NcclSettings
from ringsim.network import Floats, Network
from ringsim.schedule import Bools, Collective

_STREAM_BYTES = 2**20  # of a message


class Call(NamedTuple):
    """A collective (or one of MESSAGE_TESTS), its size, ranks and hosts.

    on_each: the ranks of each host; empty if all hosts have equally many.
    """

    collective: str
    size_bytes: int
    num_ranks: int
    num_nodes: int
    settings: NcclSettings = NOT_KNOWN
    on_each: tuple[int, ...] = ()

    @classmethod
    def on_hosts(cls, collective: str, size_bytes: int, hosts: Sequence[int]) -> "Call":
        on_each = tuple(hosts) if len(set(hosts)) > 1 else ()
        return cls(collective, size_bytes, sum(hosts), len(hosts), on_each=on_each)

    @classmethod
    def on(
        cls, network: Network, collective: Collective, num_ranks: int, size_bytes: int, per_host: RanksPerHost = None
    ) -> "Call":
        """Return the call for ranks that fill the hosts of a network.

        per_host: participating ranks, on every host or on each; None: all.
        """
        most = per_host or min(network.spec.ranks_per_host or num_ranks, num_ranks)
        return cls.on_hosts(collective.value, size_bytes, fill_hosts(num_ranks, most))

    @property
    def ranks_per_host(self) -> int | tuple[int, ...]:
        return self.on_each or self.num_ranks // self.num_nodes

    @property
    def why_unknown(self) -> str:
        """The reason why there is no formula; "" if there is one."""
        if self.collective == PT2PT_BANDWIDTH and self.size_bytes < _STREAM_BYTES:
            return "a stream of small messages: their number takes time, and not their bytes"
        return "" if self.collective in TESTS else f"there is no formula for it, only for {', '.join(TESTS)}"


@dataclass(frozen=True, slots=True, eq=False)
class CallColumns:
    """Calls as columns, (num_calls,) each."""

    size: Floats
    ranks: Floats
    nodes: Floats
    is_all_reduce: Bools
    is_message: Bools
    is_whole: Bools  # ranks forward the whole tensor, not a share of it
    is_sendrecv: Bools  # a single message of NCCL's
    is_stream: Bools  # many messages are in flight: only their bytes take time
    settings: tuple[NcclSettings, ...]
    groups: Floats  # communicators that do the same at once, and share the NICs of a host
    fewest: Floats  # ranks of a host
    most: Floats

    @property
    def senders(self) -> Floats:
        """Ranks of a host that send to another host at once; the smallest host limits them."""
        return self.groups * np.where(self.is_message, 1, self.fewest)

    @classmethod
    def from_calls(cls, calls: Sequence[Call]) -> "CallColumns":
        tests, *numbers, settings, hosts = zip(*calls, strict=True)
        size, ranks, nodes = (np.array(column, dtype=float) for column in numbers)

        def are(*kind: str) -> Bools:
            return np.array([test in kind for test in tests])

        is_message = are(*MESSAGE_TESTS)
        is_whole = is_message | are(*CHAIN_TESTS)
        is_all_reduce, is_sendrecv, is_stream = are("all_reduce"), are(SENDRECV), are(PT2PT_BANDWIDTH)
        kinds = is_all_reduce, is_message, is_whole, is_sendrecv, is_stream
        groups = np.array([setting.groups for setting in settings], dtype=float)
        of_hosts = [on or (share,) for on, share in zip(hosts, (ranks / nodes).tolist(), strict=True)]
        fewest, most = (np.array(list(map(pick, of_hosts))) for pick in (min, max))
        return cls(size, ranks, nodes, *kinds, settings, groups, fewest, most)

    def admit(self, algorithm: str, protocol: str) -> Bools:
        """Return the calls for which NCCL may use it; except for PAT, only all_reduce has a choice of algorithms."""
        names = np.where((self.nodes > 1) & (algorithm == "nvls"), "nvlstree", algorithm).tolist()
        admitted = [
            settings.admits(name if reduces or name == "PAT" else "", protocol)
            for settings, reduces, name in zip(self.settings, self.is_all_reduce.tolist(), names, strict=True)
        ]
        return np.array(admitted)
