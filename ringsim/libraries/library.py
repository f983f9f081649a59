"""`Library`: the algorithms of a collective library, and their costs on a host; `LIBRARIES`: all libraries by name.

NCCL chooses the fastest algorithm and protocol by a formula (ncclTopoGetAlgoTime in src/graph/tuning.cc), which
`nccl_model` has; its choice is simulated here.

Sources for Gloo: torch 2.13, ProcessGroupGloo.hpp (two threads, `threads = 2`), ProcessGroupGloo.cpp, and Gloo's
allreduce.cc, allgather.cc and broadcast.cc.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from ringsim.algorithms import NCCL_ALGORITHMS, RANKS_PER_HOST, RanksPerHost
from ringsim.libraries.call import Call
from ringsim.libraries.intervals import intervals
from ringsim.libraries.plan import Formula, Plan, formulas
from ringsim.limits import CHOSEN_TRANSFERS
from ringsim.measurements import TESTS
from ringsim.network import Network, Tuning
from ringsim.registry import base_name, build
from ringsim.schedule import Collective, Schedule, same_transfers
from ringsim.simulation import RULE, Runtime, predict_repeated, predict_time

DIRECT = (Collective.GATHER, Collective.SCATTER, Collective.ALL_TO_ALL)  # every block goes from one rank to one other
# glibc maps and unmaps larger blocks each time (M_MMAP_THRESHOLD_MAX, mallopt(3)): every page is then new and must be
# cleared first.
NEW_BEYOND_BYTES = 32 * 2**20
SHARED_MEMORY = "shm"  # the transport of ranks of a host that read from each other's memory
# The names of NCCL's schedules in the formulas; a single ring stands for one of NCCL's.
_IN_FORMULAS = {"ring": "ring", "nccl_ring": "ring", "nccl_tree": "tree", "nvls": "in_switch"}


class CallCost(NamedTuple):
    """The cost of a call besides its messages and copies; 0 if the network has no such cost.

    cold_s: more after a long computation, when the caches are cold and the threads asleep.
    late_share, late_s: of the calls, and the time by which they are late.
    """

    call_s: float
    cold_s: float
    late_share: float
    late_s: float

    def after_s(self, computed_s: float) -> float:
        """Return the seconds of a call that is not late; computed_s: of computation since the rank's previous call."""
        return self.call_s + min(self.cold_s, computed_s)


@dataclass(frozen=True, slots=True)
class Library:
    """A library of collectives; the names of algorithms are those of `ringsim algorithms`.

    title: its name in texts. runtime: how its ranks execute a schedule.
    all_reduce, broadcast: the algorithms; if the library chooses, for calls of which its choice is unknown.
    chooses: whether it chooses the fastest algorithm and protocol by size. A GPU then executes its calls, and no thread
    waits for a core of the host.
    is_torch: whether calls go through torch.distributed.
    """

    title: str
    runtime: Runtime
    all_reduce: str
    broadcast: str
    chooses: bool = False
    is_torch: bool = True

    def with_algorithm(self, all_reduce: str) -> Self:
        return replace(self, all_reduce=all_reduce, chooses=False)

    def over(self, transport: str, touched_bytes: int | None = None) -> Self:
        """Return the library over a transport, such as "shm" or "gloo"; touched_bytes: as in `Runtime`."""
        runtime = replace(self.runtime, shares_memory=transport == SHARED_MEMORY, touched_bytes=touched_bytes)
        return replace(self, runtime=runtime)

    def algorithm(self, collective: Collective) -> tuple[Collective, str]:
        """Return the collective and the algorithm that carry out a collective; all libraries send DIRECT ones alike."""
        if collective in DIRECT:
            return collective, "direct"
        named = {Collective.ALL_REDUCE: self.all_reduce, Collective.BROADCAST: self.broadcast}
        return collective, named.get(collective, "ring")

    def schedule(self, collective: Collective, num_ranks: int, size_bytes: int) -> Schedule:
        return build(*self.algorithm(collective), num_ranks, size_bytes)

    def why_unknown(self, network: Network, call: Call) -> str:
        """Return why the choice for a call is unknown; "" if `choose` knows it."""
        spec = network.spec
        link = spec.host.link if call.num_nodes == 1 else spec.host.nics
        if not self.chooses:
            return "it has one algorithm for all sizes"
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
        """Return the library's choice for a call, by its own formula. runtime: as in `simulate`.

        Raises ValueError if the choice is unknown or more than `max_transfers` would be simulated.
        """
        if why := self.why_unknown(network, call):
            raise ValueError(f"{given_name(network)}: {self.title}'s choice is not known: {why}")
        plan = self._fastest_of_formulas(network, call)
        plan.require_known(max_transfers, runtime)
        return plan

    def _fastest_of_formulas(self, network: Network, call: Call) -> Plan:
        if (collective := Collective(call.collective)) in DIRECT:
            schedule = build(collective, "direct", call.num_ranks, call.size_bytes)
            return Plan(self.title, schedule, call.size_bytes, network.spec.protocols[-1], network)
        taken = _fastest(formulas(network, call))
        expected = intervals(network, [call]) if taken.time_s > 0 else []
        relative = expected[0].map(lambda end_s: end_s / taken.time_s) if expected else None
        return Plan(self.title, taken.schedule, call.size_bytes, taken.protocol, network, taken, relative)

    def fastest_plan(
        self,
        schedule: Schedule,
        network: Network,
        size_bytes: int,
        per_host: RanksPerHost = None,
        runtime: Runtime = RULE,
    ) -> Plan | None:
        """Return the schedule over its fastest protocol; None if there are no protocols. per_host: as in `Call.on`."""
        plans = self._plans(schedule, network, size_bytes, per_host, network)
        return min(plans, key=lambda plan: plan.time_s(runtime=runtime), default=None)

    def time_s(
        self, schedule: Schedule, network: Network, size_bytes: int, *, measured: Network | None = None
    ) -> float:
        """Return the seconds of a schedule as the library sends it.

        measured: the measured network, if `network` is an improvement of it. Its pace is used, since measured values,
        such as the steps of a ring, do not follow from better links.
        """
        plans = self._plans(schedule, network, size_bytes, None, measured or network)
        return min(plan.time_s() for plan in plans) if plans else predict_time(schedule, network, size_bytes)

    def _plans(
        self, schedule: Schedule, network: Network, size_bytes: int, per_host: RanksPerHost, measured: Network
    ) -> list[Plan]:
        """Return the schedule over its protocols, at the pace of the formula of `measured` if there is one.

        In-network reduction has only the last protocol. A schedule of more than CHOSEN_TRANSFERS transfers gets only
        the formula's protocol or, without a formula, the last one, which is that of large tensors.
        """
        protocols = network.spec.protocols if self.chooses else ()
        if not protocols:
            return []
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

    def copies(self, collective: Collective, num_ranks: int, size_bytes: int) -> tuple[float, float]:
        """Return the bytes that each rank copies in a call, and copies to a new tensor."""
        del collective, num_ranks, size_bytes
        return 0.0, 0.0

    def call_cost(self, network: Network, *, is_async: bool = False) -> CallCost:
        """Return the cost of a call; is_async: whether another thread executes it."""
        rank = network.spec.processor
        if self.is_torch:
            late = (0.0, 0.0) if self.chooses else (rank.torch_late_share, rank.torch_late_s)
            return CallCost(rank.torch_call_s, rank.cold_torch_call_s, *late)
        own = self.runtime.shared_memory(network) or rank
        if is_async:
            late = rank.async_late_share, rank.async_late_s
            return CallCost(own.call_s + rank.async_call_s, own.cold_call_s, *late)
        return CallCost(own.call_s, own.cold_call_s, own.late_share, own.late_s)

    def predict_call(
        self, schedule: Schedule, network: Network, size_bytes: int, *, in_place: bool = False, beside_s: float = 0.0
    ) -> float:
        """Return the seconds of a call that follows another one like it: a link sends a saved burst only once.

        in_place: as in `Runtime`. beside_s: additional time per call.
        """
        runtime, call_s = replace(self.runtime, in_place=in_place), self.call_cost(network).call_s + beside_s
        return predict_repeated(schedule, network, size_bytes, runtime, beside_s=call_s)


class _Gloo(Library):
    """Gloo in torch.distributed: its rings, and torch's copies around them."""

    __slots__ = ()

    def algorithm(self, collective: Collective) -> tuple[Collective, str]:
        """Return a whole all_reduce for reduce_scatter_tensor, and a ring of the other direction for all_gather."""
        if collective is Collective.REDUCE_SCATTER:
            return Collective.ALL_REDUCE, self.all_reduce
        return (collective, "gloo_ring") if collective is Collective.ALL_GATHER else super().algorithm(collective)

    def copies(self, collective: Collective, num_ranks: int, size_bytes: int) -> tuple[float, float]:
        if collective is Collective.REDUCE_SCATTER:
            return size_bytes / num_ranks, size_bytes
        return (size_bytes, size_bytes) if collective is Collective.ALL_GATHER else (0.0, 0.0)


def copy_s(network: Network, num_ranks: int, copied: float, cloned: float = 0.0) -> float:
    """Return the seconds in which each rank copies `copied` bytes, and `cloned` bytes to a new tensor.

    Copying is assumed to be as fast as adding: memory bounds both.
    """
    rank = network.spec.processor
    clone_rate = rank.first_touch_bytes_per_s if cloned > NEW_BEYOND_BYTES else rank.reduce_bytes_per_s
    # All ranks copy at once, and a host may have fewer cores than ranks.
    waiting = max(1.0, (network.spec.ranks_per_host or num_ranks) / (network.spec.host.cores or math.inf))
    return (copied / rank.reduce_bytes_per_s + cloned / clone_rate) * waiting


def given_name(network: Network) -> str:
    """Return the network's name for error messages; a uniform network has none."""
    return "the default network (--latency, --bandwidth)" if network.message_costs else network.name


def _fastest(known: Iterable[Formula]) -> Formula:
    return min(known, key=lambda formula: formula.time_s)


def _on_its_hosts(schedule: Schedule, network: Network, size_bytes: int) -> Schedule:
    """Return NCCL's algorithm on the network's hosts, if its name did not give their ranks."""
    name, per_host = schedule.algorithm, network.spec.ranks_per_host
    if name not in NCCL_ALGORITHMS or per_host in (None, RANKS_PER_HOST):
        return schedule
    default, own = (
        build(schedule.collective, name + hosts, schedule.num_ranks, size_bytes) for hosts in ("", f"@{per_host}")
    )
    return own if same_transfers(schedule.steps, default.steps) else schedule  # whose ranks are in other places


GLOO = _Gloo("Gloo", Runtime(in_order=True, num_workers=2), "gloo_ring", "binomial_tree")  # works on two at once
OURS = Library("ringsim", Runtime(in_order=True, shares_memory=True), "ring", "binomial_tree", is_torch=False)
MESSAGES = Library("no library", RULE, "ring", "ring")  # a schedule takes as long as its messages alone
NCCL = Library("NCCL", RULE, "ring", "ring", chooses=True)  # a process group has one stream: one call after another
LIBRARIES = {"gloo": GLOO, "nccl": NCCL, "ring": OURS}  # by the names of torch's backends
GLOO_RING = "gloo_ring"  # no other library has it
LIBRARY = "nccl"  # not one algorithm, but what NCCL takes for the size and the number of ranks
LIBRARY_TITLE = NCCL.title
LIBRARY_ALGORITHMS = NCCL_ALGORITHMS  # that only the library has which networks describe; the first is its ring


def library_of(network: Network) -> Library:
    """Return the library that a network describes; MESSAGES if none."""
    return NCCL if network.spec.protocols else MESSAGES


def tables_of_library(network: Network) -> str:
    """Return the parts of a network's file that only its library's times depend on; "" if none."""
    if not network.spec.protocols and network.spec.library == Tuning():
        return ""
    return f"{LIBRARY_TITLE}'s protocols and trees ([[protocol]] and [library] in the file)"


def why_not(network: Network, algorithm: str) -> str:
    """Return why ranks on a network cannot use a library's algorithm; "" if they can.

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
