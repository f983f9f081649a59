"""`NCCL`: a library that chooses, as a schedule and the network of its protocol; `LIBRARIES`: all libraries by name.

NCCL estimates the time of each algorithm with each protocol by a formula, and chooses the fastest (ncclTopoGetAlgoTime
in src/graph/tuning.cc). `nccl_model` has the formula; its choice is simulated here.
"""

import math
from collections.abc import Iterable

from ringsim.algorithms import NCCL_ALGORITHMS, RANKS_PER_HOST, RanksPerHost
from ringsim.libraries.call import Call
from ringsim.libraries.intervals import intervals
from ringsim.libraries.library import DIRECT, GLOO, MESSAGES, OURS, Library
from ringsim.libraries.plan import Formula, Plan, formulas
from ringsim.limits import CHOSEN_TRANSFERS
from ringsim.measurements import TESTS
from ringsim.network import Network
from ringsim.registry import base_name, build
from ringsim.schedule import Collective, Schedule, same_transfers
from ringsim.simulation import RULE, Runtime

# The names of NCCL's schedules in the formulas; a single ring stands for one of NCCL's.
_IN_FORMULAS = {"ring": "ring", "nccl_ring": "ring", "nccl_tree": "tree", "nvls": "in_switch"}


class _Nccl(Library):
    __slots__ = ()

    def why_unknown(self, network: Network, call: Call) -> str:
        spec = network.spec
        link = spec.host.link if call.num_nodes == 1 else spec.host.nics
        if not spec.protocols:
            return "it does not describe NCCL: give --network with a file that does"
        if call.num_ranks == 1:
            return "a single rank sends nothing"
        if spec.max_ranks is not None and call.num_ranks > spec.max_ranks:
            return f"its hosts have {spec.max_ranks} ranks"
        if spec.placed_hosts or math.isinf(link.bandwidth_bytes_per_s):
            return "it does not describe hosts that are all alike, with bandwidths of links and NICs: name an algorithm"
        return ""

    def choose(
        self, network: Network, call: Call, max_transfers: float = CHOSEN_TRANSFERS, runtime: Runtime = RULE
    ) -> Plan:
        if why := self.why_unknown(network, call):
            raise self._refusal(network, why)
        plan = self._fastest_of_formulas(network, call)
        plan.require_known(max_transfers, runtime)
        return plan

    def _fastest_of_formulas(self, network: Network, call: Call) -> Plan:
        if (collective := Collective(call.collective)) in DIRECT:
            schedule = build(collective, "direct", call.num_ranks, call.size_bytes)
            return Plan(self.title, schedule, call.size_bytes, network.spec.protocols[-1], network)
        taken = _fastest(formulas(network, call))
        expected = intervals(network, [call]) if taken.time_s > 0 else []
        within = expected[0].map(lambda end_s: end_s / taken.time_s) if expected else None
        return Plan(self.title, taken.schedule, call.size_bytes, taken.protocol, network, taken, within)

    def fastest_plan(
        self,
        schedule: Schedule,
        network: Network,
        size_bytes: int,
        per_host: RanksPerHost = None,
        runtime: Runtime = RULE,
    ) -> Plan | None:
        plans = self._plans(schedule, network, size_bytes, per_host, network)
        return min(plans, key=lambda plan: plan.time_s(runtime=runtime), default=None)

    def time_s(
        self, schedule: Schedule, network: Network, size_bytes: int, *, measured: Network | None = None
    ) -> float:
        plans = self._plans(schedule, network, size_bytes, None, measured or network)
        return min(plan.time_s() for plan in plans) if plans else super().time_s(schedule, network, size_bytes)

    def _plans(
        self, schedule: Schedule, network: Network, size_bytes: int, per_host: RanksPerHost, measured: Network
    ) -> list[Plan]:
        """Return the schedule over its protocols, at the pace of the formula of `measured` if there is one.

        In-network reduction has only the last protocol. More than CHOSEN_TRANSFERS transfers are not simulated once per
        protocol: they get the formula's protocol or, without a formula, the last one, which is that of large tensors.
        """
        protocols = network.spec.protocols
        schedule = _on_its_hosts(schedule, network, size_bytes)
        known = self._formulas(schedule, measured, size_bytes, per_host)
        if base_name(schedule.algorithm) == "nvls":
            protocols = protocols[-1:]
        elif schedule.num_transfers > CHOSEN_TRANSFERS:
            name = _fastest(known.values()).protocol.name if known else ""
            protocols = tuple(protocol for protocol in protocols if protocol.name == name) or protocols[-1:]
        own = self.title, schedule, size_bytes
        return [Plan(*own, protocol, network, known.get(protocol.name)) for protocol in protocols]

    def _formulas(
        self, schedule: Schedule, network: Network, size_bytes: int, per_host: RanksPerHost
    ) -> dict[str, Formula]:
        own, collective = base_name(schedule.algorithm), schedule.collective
        call = Call.on(network, collective, schedule.num_ranks, size_bytes, per_host)
        if own not in _IN_FORMULAS or call.collective not in TESTS or self.why_unknown(network, call):
            return {}
        return {formula.protocol.name: formula for formula in formulas(network, call, _IN_FORMULAS[own])}


def _fastest(known: Iterable[Formula]) -> Formula:
    return min(known, key=lambda formula: formula.time_s)


def _on_its_hosts(schedule: Schedule, network: Network, size_bytes: int) -> Schedule:
    """Return NCCL's own algorithm on the network's hosts, if its name did not give their ranks."""
    name, per_host = schedule.algorithm, network.spec.ranks_per_host
    if name not in NCCL_ALGORITHMS or per_host in (None, RANKS_PER_HOST):
        return schedule
    default, own = (
        build(schedule.collective, name + hosts, schedule.num_ranks, size_bytes) for hosts in ("", f"@{per_host}")
    )
    return own if same_transfers(schedule.steps, default.steps) else schedule  # whose ranks are in other places


NCCL = _Nccl("NCCL", RULE, "ring", "ring", chooses=True)  # a process group has one stream: one call after another
LIBRARIES = {"gloo": GLOO, "nccl": NCCL, "ring": OURS}  # by the names of torch's backends
GLOO_RING = "gloo_ring"  # no other library has it
LIBRARY = "nccl"  # not one algorithm, but what NCCL takes for the size and the number of ranks
LIBRARY_ALGORITHMS = NCCL_ALGORITHMS  # that only the library has which networks describe; the first is its ring


def library_of(network: Network) -> Library:
    """Return the library that a network describes; MESSAGES if none."""
    return NCCL if network.spec.protocols else MESSAGES


def why_not(network: Network, algorithm: str) -> str:
    """Return why ranks on a network do not use an algorithm of another library; "" if they may use it.

    NVLS also needs a switch that adds (Hopper or newer).
    """
    describes_nccl = bool(network.spec.protocols)
    if algorithm == GLOO_RING:
        return "describes NCCL, not Gloo" if describes_nccl else ""
    if algorithm not in (*NCCL_ALGORITHMS, LIBRARY):
        return ""
    if not describes_nccl:
        return "does not describe NCCL"
    return "has no switch that adds" if algorithm == "nvls" and network.spec.library.switch_share is None else ""
