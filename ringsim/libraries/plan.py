"""`Plan`: a schedule as a collective library sends it, at the pace of the library's own formula.

The formula is fitted to logs and confirmed by held-out logs. A simulation has other times: in NCCL's rings the hops
within a host run ahead while chunks queue for its NIC, and hide latencies; trees begin and end with some segments under
way; chains of ranks use one NIC of a host. All times over the network are therefore multiplied by the `pace` at which
NCCL's own schedule takes the time of the formula. The pace comes from sound hosts: slow, failing or shared parts
lengthen a time as the simulation says.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec.structs import replace

from ringsim.algorithms import ALGORITHMS, built_in, fill_hosts
from ringsim.estimates import Estimate
from ringsim.libraries.call import Call
from ringsim.libraries.nccl_model import algorithm_times
from ringsim.limits import CHOSEN_TRANSFERS
from ringsim.measurements import CHAIN_TESTS
from ringsim.network import Host, Link, Network, Nics, PlacedHost, Protocol, Spec, lay_out, with_ports
from ringsim.registry import base_name, build
from ringsim.schedule import Collective, Schedule, same_transfers
from ringsim.simulation import RULE, OnProgress, Runtime, ignore_progress, lists_more_than, predict_time
from ringsim.units import plural

_PACES_KEPT = 1024
_OWN_NAMES = {"tree": "nccl_tree", "in_switch": "nvls"}  # of NCCL's schedules, by those in the formulas
_IS_PORT = re.compile(r"rank\d+\.|host\d+\.nic")  # of a link whose bandwidth is that of `host.link` or `host.nic`


@dataclass(frozen=True, eq=False)  # without slots, for cached properties
class Formula:
    """The seconds of an algorithm, such as "ring", over one protocol, by the library's formula.

    hosts: a network of only the properties that the formula knows.
    """

    algorithm: str
    call: Call
    protocol: Protocol
    hosts: Network
    time_s: float

    @cached_property
    def schedule(self) -> Schedule:
        """The library's own schedule; a ring replaces PAT, which has no schedule here."""
        return _own_schedule(self.algorithm, self.call)

    @property
    def pace(self) -> float:
        """Ratio of the formula to the simulated time; on fewer hosts if the schedule is too large to simulate.

        A rank then sends the same bytes per step, on which the pace of a ring depends.
        """
        simulated_s = _simulated_s(self.algorithm, self.call, self.protocol, self.hosts)
        if simulated_s is None and (fewer := self._on_fewer_hosts()):
            return fewer.pace
        return self.time_s / simulated_s if simulated_s and self.time_s else 1.0

    def _on_fewer_hosts(self) -> "Formula | None":
        asked, per_host = self.call, self.call.ranks_per_host
        counts = list(per_host) if isinstance(per_host, tuple) else [per_host] * asked.num_nodes
        if len(counts) < 4:
            return None
        counts = counts[len(counts) // 2 :]  # the last one may have fewer ranks
        size_bytes = asked.size_bytes * sum(counts) // asked.num_ranks
        fewer = Call.on_hosts(asked.collective, size_bytes, counts)._replace(settings=asked.settings)
        known = formulas(self.hosts.with_spec(num_hosts=None), fewer, self.algorithm)
        return next((one for one in known if one.protocol == self.protocol), None)

    def is_of(self, schedule: Schedule) -> bool:
        own = self.schedule
        same_chunks = (own.num_chunks, own.partition) == (schedule.num_chunks, schedule.partition)
        return same_chunks and same_transfers(own.steps, schedule.steps)

    def describes(self, network: Network) -> bool:
        """Return whether a network, too, has only the properties that the formula knows."""
        spec, per_host = network.spec, self.hosts.spec.ranks_per_host
        is_whole = per_host == min(spec.ranks_per_host or self.call.num_ranks, self.call.num_ranks)
        return is_whole and replace(spec, ranks_per_host=per_host, num_hosts=None) == self.hosts.spec


def formulas(network: Network, call: Call, algorithm: str = "") -> Iterator[Formula]:
    """Yield a formula for each algorithm and protocol; algorithm: as in `algorithm_times`."""
    spec, like = network.spec, _sound(network.spec)
    hosts = Network("hosts", replace(like, **_placing(like.host, call)))
    protocols = {protocol.name: protocol for protocol in spec.protocols}
    for name, time_s in algorithm_times(network, call, algorithm).items():
        taken, _, protocol = name.partition(" ")
        yield Formula(taken, call, protocols.get(protocol, spec.protocols[-1]), hosts, time_s)


def _sound(spec: Spec) -> Spec:
    """Return the hosts, in any number, with only the properties that the formulas know."""
    link, nics = spec.host.link, spec.host.nics
    host = Host(
        link=Link(link.latency_s, link.bandwidth_bytes_per_s),
        nics=Nics(nics.latency_s, nics.bandwidth_bytes_per_s, count=nics.count),
    )
    return Spec(host, fabric=spec.fabric, protocols=spec.protocols, library=spec.library)


def _placing(host: Host, call: Call) -> dict[str, Any]:
    per_host = call.ranks_per_host
    most = per_host if isinstance(per_host, int) else max(per_host)
    if isinstance(per_host, int) or per_host == tuple(fill_hosts(call.num_ranks, most)):
        return {"ranks_per_host": most}
    ends = np.cumsum([0, *per_host]).tolist()
    ranks = (tuple(range(first, last)) for first, last in pairwise(ends))
    return {"placed_hosts": tuple(PlacedHost(f"host{number}", own, host) for number, own in enumerate(ranks))}


@dataclass(frozen=True, eq=False)  # without slots, for cached properties
class Plan:
    """A schedule for a size as the library sends it over a protocol.

    library: its title. described: the network of the file. formula: None if there is none.
    relative_interval: relative to the time, with probability `INSIDE`; None if unknown.
    """

    library: str
    schedule: Schedule
    size_bytes: int
    protocol: Protocol
    described: Network
    formula: Formula | None = None
    relative_interval: Estimate | None = None

    @property
    def sent_bytes(self) -> int:
        """Size to simulate: few of many transfers represent all if chunks are even, as NCCL's are."""
        is_large = self.schedule.num_transfers > CHOSEN_TRANSFERS
        return in_even_chunks(self.schedule, self.size_bytes) if is_large else self.size_bytes

    @cached_property
    def known_s(self) -> float | None:
        """Seconds by a formula that knows all, start included; None if only a simulation gives them."""
        formula = self.formula
        if formula is None:
            return self._direct_exchange_s()
        is_known = formula.describes(self.described) and formula.is_of(self.schedule)
        return formula.time_s if is_known else None

    def _direct_exchange_s(self) -> float | None:
        """Return the seconds of a direct all_to_all between sound hosts that is too large to simulate; else None.

        Exact, since a message shares only one resource, and that with the most messages is never idle.
        """
        schedule, spec, num_ranks = self.schedule, self.described.spec, self.schedule.num_ranks
        is_sound = replace(spec, ranks_per_host=None, num_hosts=None) == _sound(spec)
        is_straight = (schedule.collective, schedule.algorithm) == (Collective.ALL_TO_ALL, "direct")
        if not (is_sound and is_straight and num_ranks**2 > CHOSEN_TRANSFERS):
            return None
        layout = lay_out(spec, num_ranks)
        on_host = np.bincount(layout.host_of_rank)
        host = self.network.on_hosts(len(on_host)).spec.host
        by_nic = np.bincount(layout.nic_of_rank, weights=num_ranks - on_host[layout.host_of_rank]).max()
        share = self.size_bytes / num_ranks
        within_s = host.link.latency_s + (on_host.max() - 1) * share / host.link.bandwidth_bytes_per_s
        across_s = 2 * host.nics.latency_s + by_nic * share / host.nics.bandwidth_bytes_per_s
        return self.start_s + float(max(within_s * (on_host.max() > 1), across_s * (len(on_host) > 1)))

    def channels(self, num_hosts: int) -> int:
        """Return the channels, each of which occupies a multiprocessor; 0 if not known."""
        library = self.described.spec.library
        is_ring_of_a_host = num_hosts == 1 and self.schedule.algorithm != "nvls"
        return (is_ring_of_a_host and library.link_channels) or library.channels

    @property
    def notes(self) -> list[str]:
        if self.formula is None or not self.formula.is_of(self.schedule):
            return []
        asked, notes, num_nics = self.formula.call, [], self.described.spec.host.nics.count or math.inf
        fewest = min(asked.on_each or (asked.num_ranks // asked.num_nodes,))
        if asked.on_each:
            ranks = f"{fewest} to {max(asked.on_each)} ranks"
            notes.append(
                f"hosts have {ranks}, and {self.library} only the channels of {plural(fewest, 'rank')} on each"
            )
        if self.known_s is None and asked.collective in CHAIN_TESTS and asked.num_nodes > 1 < min(fewest, num_nics):
            notes.append(
                f"a chain over one NIC of a host stands for {self.library}'s over all: "
                "what is slow elsewhere is left out"
            )
        return notes

    def formula_s(self, runtime: Runtime = RULE) -> float | None:
        """Return `known_s`, or None for another runtime than RULE, which formulas assume.

        Only this function decides between formula and simulation (docs/cost-model.md); `assumed_s` is for what is too
        large to simulate.
        """
        return self.known_s if runtime == RULE else None

    @property
    def assumed_s(self) -> float:
        """Seconds by the formula, start included, as if it knew all. Raises ValueError if there is none."""
        if self.formula and self.formula.is_of(self.schedule):
            return self.formula.time_s
        raise ValueError(f"{self.schedule} has too many transfers to simulate, and no formula: give fewer ranks")

    def lists_more_than(self, max_transfers: float, runtime: Runtime = RULE) -> bool:
        return lists_more_than(max_transfers, self.schedule, self.described, self.sent_bytes, runtime=runtime)

    def require_known(self, max_transfers: float, runtime: Runtime) -> None:
        """Raise ValueError if no formula gives the time, and the simulation exceeds `max_transfers`."""
        if self.formula_s(runtime) is None and self.lists_more_than(max_transfers, runtime):
            place = "its network, order or runtime" if self.formula else "it"
            raise ValueError(
                f"{self.described.place}: {self.schedule} has more than {max_transfers:,.0f} transfers to simulate, "
                f"and there is no formula of {self.library}'s for {place}: give fewer ranks, or name an --algorithm"
            )

    def why_by_formula(self, runtime: Runtime) -> str | None:
        """Return why only the formula gives the time; None if a simulation also can."""
        if self.formula_s(runtime) is None or (self.formula and not self.lists_more_than(CHOSEN_TRANSFERS, runtime)):
            return None
        own = f"{self.library}'s" if self.formula else "a"
        return f"{self.schedule.num_transfers:,} transfers are too many to simulate: only {own} formula says the time"

    def how_timed(self, runtime: Runtime, *, is_simulated: bool) -> str:
        if self.formula_s(runtime) is None:
            paced = f" at the pace of {self.library}'s formula" if self.formula else ""
            return f"simulated over {self.library}'s protocol{paced}"
        own = f"by {self.library}'s formula" if self.formula else "by the formula of messages sent at once"
        return own + (", and simulated at its pace" if is_simulated else ", not simulated")

    def time_s(
        self, *, runtime: Runtime = RULE, on_progress: OnProgress = ignore_progress, messages_s: float | None = None
    ) -> float:
        """Return the seconds, start included, by `formula_s` or simulated.

        runtime, on_progress: as in `simulate`. messages_s: of the messages, if already simulated.
        """
        if (known_s := self.formula_s(runtime)) is not None:
            return known_s
        if messages_s is None:
            sent = self.schedule, self.network, self.sent_bytes
            messages_s = predict_time(*sent, runtime=runtime, on_progress=on_progress)
        return self.start_s + messages_s

    @cached_property
    def _pace(self) -> float:
        return self.formula.pace if self.formula else 1.0

    @property
    def _is_in_switch(self) -> bool:
        return base_name(self.schedule.algorithm) == "nvls" and bool(self.described.spec.library.switch_share)

    @property
    def start_s(self) -> float:
        switch_s, start_s = self.described.spec.library.switch_latency_s, self.protocol.start_s
        if switch_s is not None and self._is_in_switch:
            start_s = max(0.0, switch_s - 2 * self.protocol.link_latency_s)
        return self._pace * start_s

    @cached_property
    def network(self) -> Network:
        """The network with the protocol's latencies and share of the bandwidth, at the pace."""
        protocol, library, pace = self.protocol, self.described.spec.library, self._pace
        is_tree = base_name(self.schedule.algorithm) == "nccl_tree"
        link_s = protocol.tree_link_latency_s if is_tree else protocol.link_latency_s
        hop_s = protocol.tree_hop_latency_s if is_tree else protocol.hop_latency_s
        if self._is_in_switch and library.switch_hop_latency_s is not None:
            hop_s = library.switch_hop_latency_s
        share = protocol.share * (library.tree_share or 1.0 if is_tree else 1.0) / pace

        def paced(host: Host) -> Host:
            link_rate, nic_rate = (share * link.bandwidth_bytes_per_s for link in (host.link, host.nics))
            link = replace(host.link, latency_s=pace * link_s, bandwidth_bytes_per_s=link_rate)
            nics = replace(host.nics, latency_s=pace * hop_s / 2, bandwidth_bytes_per_s=nic_rate)
            return replace(host, link=link, nics=nics)

        return dataclasses.replace(self.described, spec=with_ports(self.described.spec, paced, _IS_PORT, share))


def in_even_chunks(schedule: Schedule, size_bytes: int, element_bytes: int = 1) -> int:
    """Return the size, rounded up so that all chunks (of all ranks' tensors in an all_to_all) are equally large.

    NCCL also rounds up (runRing in src/device/all_reduce.h); only its last chunk is shorter.
    """
    num_tensors = schedule.collective.num_tensors(schedule.num_ranks)
    unit = schedule.num_chunks // math.gcd(schedule.num_chunks, num_tensors) * element_bytes
    return -(-size_bytes // unit) * unit


@lru_cache(maxsize=_PACES_KEPT)
def _simulated_s(algorithm: str, call: Call, protocol: Protocol, hosts: Network) -> float | None:
    """Return the seconds of the library's own schedule; None if it is too large to simulate."""
    choice = Plan("", _own_schedule(algorithm, call), call.size_bytes, protocol, hosts)
    too_large = lists_more_than(CHOSEN_TRANSFERS, choice.schedule, hosts, choice.sent_bytes)
    return None if too_large else choice.time_s()


@lru_cache(maxsize=1)  # of all protocols
def _own_schedule(algorithm: str, call: Call) -> Schedule:
    collective, name = Collective(call.collective), _OWN_NAMES.get(algorithm, "nccl_ring")
    if (collective, name) in ALGORITHMS:
        return built_in(collective, name, call.num_ranks, call.size_bytes, ranks_per_host=call.ranks_per_host)
    return build(collective, "ring", call.num_ranks, call.size_bytes)
