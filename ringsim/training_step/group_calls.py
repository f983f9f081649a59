"""`GroupCalls`: the collectives of a process group on a network.

Groups of the same shape, such as those of one rank of each host, communicate at the same time, since all ranks run the
same program. They are simulated together, and therefore share NICs and links.
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec import structs

from ringsim.algorithms import shift
from ringsim.estimates import Estimate
from ringsim.libraries import OURS, Call, Library, Plan, copy_s, given_name, in_even_chunks
from ringsim.limits import QUEUED_TRANSFERS
from ringsim.network import Network, lay_out, slowdown
from ringsim.registry import build, size_variant
from ringsim.schedule import Collective, Ints, Schedule, on_groups
from ringsim.simulation import QueuedCall, Runtime, Span, has_steady_times, lists_more_than, predict_time, time_queue
from ringsim.traces import SENDRECV, TraceCall, element_bytes_of


class PlannedCall(NamedTuple):
    """A call, and the protocol that the library chooses; None if not known.

    formula_s: seconds by the library's formula, start included, if a simulation shows nothing else or is too large.
    channels: as in `Plan`.
    """

    protocol: str | None
    call: QueuedCall
    formula_s: float | None = None
    channels: int = 0


class GroupCalls:
    """The collectives of a process group on a network.

    why_not: why calls do not follow the library's choice; "" if they do, or the library has one algorithm only.

    Raises ValueError for an unknown algorithm.
    """

    def __init__(self, network: Network, num_ranks: int, library: Library, ranks: Sequence[int] | None = None) -> None:
        """`ranks`: of the group, among the `num_ranks` of the job; None: all.

        NICs have the rate for the number of the group's hosts, not of the job's.
        Groups that are alike, but on other hosts, draw factors of their calls' times; the step waits for the slowest.
        """
        self.library, self.ranks = library, ranks or range(num_ranks)
        self._num_ranks = num_ranks
        self._groups = mirrored_groups(self.ranks, num_ranks)
        self._size = self._groups.shape[1]
        host_of_rank = lay_out(network.spec, num_ranks).host_of_rank
        self._hosts: list[int] = np.unique(host_of_rank[self._groups[0]], return_counts=True)[1].tolist()
        self.network = network.on_hosts(len(self._hosts))
        self._fabric = network.spec.fabric
        self._places = len({tuple(np.unique(hosts).tolist()) for hosts in host_of_rank[self._groups]})
        self._slowdown = self._at(0.5)
        self._is_steady = has_steady_times(network.topology(num_ranks))
        # So that a wrong name is an error now.
        library.schedule(Collective.ALL_REDUCE, self._size, size_bytes=1)
        self.why_not = self._why_not_chosen()
        self._chooses = library.chooses and not self.why_not
        self._schedules: dict[tuple[str, str, str, int, int | None], tuple[Schedule, Plan | None]] = {}
        self._messages_s: dict[tuple[int, int, int, int, bool], float] = {}
        self._too_large: dict[tuple[int, int], bool] = {}
        self._by_formula: set[str] = set()

    def require_priced(self) -> None:
        """Raise ValueError if a message between neighbours takes no time."""
        if self.library.runtime.shared_memory(self.network) is None:
            self.network.require_priced(self._num_ranks)

    def on(self, network: Network) -> "GroupCalls":
        return GroupCalls(network, self._num_ranks, self.library, self.ranks)

    def at_quantile(self, quantile: float) -> "GroupCalls":
        """Return the same calls at a quantile of their times across hosts, by the spread of the fabric."""
        other = copy(self)
        other._slowdown = other._at(quantile)
        return other

    def _at(self, quantile: float) -> float:
        return slowdown(self._fabric, len(self._hosts), quantile, self._places)

    def call(self, call: TraceCall, ready_s: float = 0.0, computed_s: float = 0.0, place: float = 0.0) -> PlannedCall:
        """Return a call that is ready at `ready_s`.

        computed_s: as in `CallCost.after_s`. place: from 0 to 1; calls of the highest places are late.

        Raises ValueError for an unknown collective or algorithm.
        """
        element_bytes, sent_bytes = element_bytes_of(call.dtype), self._sent_bytes(call)
        schedule, plan = self._schedule(call)
        size_bytes = -(-sent_bytes // element_bytes) * element_bytes
        if plan is not None:
            size_bytes = in_even_chunks(schedule, sent_bytes, element_bytes)
        carrier = self.carrier(call.algorithm)
        cost = carrier.call_cost(self.network, is_async=call.is_async)
        call_s = cost.after_s(computed_s) + call.local_s
        if self.may_be_late(call) and place > 1 - cost.late_share:
            call_s += cost.late_s
        copies = carrier.copies(_simulated_as(call.collective), self._size, size_bytes)
        call_s += copy_s(self.network, self._num_ranks, *copies)
        queued = QueuedCall(schedule, size_bytes, element_bytes, ready_s, call_s, is_lent=call.is_lent)
        return PlannedCall(None, queued) if plan is None else self._over_protocol(queued, plan)

    def _over_protocol(self, queued: QueuedCall, plan: Plan) -> PlannedCall:
        schedule = queued.schedule
        shares_nics = schedule is not plan.schedule and self._places < len(self._groups)
        time_s = None if shares_nics else plan.formula_s()
        if time_s is None and self._is_too_large(schedule, queued.size_bytes):
            self._by_formula.add(schedule.algorithm)
            time_s = plan.assumed_s
        if time_s is None:
            queued = queued._replace(call_s=queued.call_s + plan.start_s, network=plan.network)
        return PlannedCall(plan.protocol.name, queued, time_s, plan.channels(len(self._hosts)))

    def _is_too_large(self, schedule: Schedule, size_bytes: int) -> bool:
        key = id(schedule), size_bytes
        if key not in self._too_large:  # a call is asked for again in every pass of a step
            self._too_large[key] = lists_more_than(QUEUED_TRANSFERS, schedule, self.network, size_bytes)
        return self._too_large[key]

    @property
    def by_formula(self) -> str:
        """The calls so far with times of the library's formula, and the reason; "" if none."""
        if not self._by_formula:
            return ""
        calls = f"{' and '.join(sorted(self._by_formula))} on {self._size:,} ranks"
        return f"{calls}: the time of {self.library.title}'s own formula, as it has too many transfers to be simulated"

    def may_be_late(self, call: TraceCall) -> bool:
        cost = self.carrier(call.algorithm).call_cost(self.network, is_async=call.is_async)
        return self._size > 1 and cost.late_share > 0 and cost.late_s > 0

    def carrier(self, algorithm: str) -> Library:
        """Return the library of a call: `collectives` if it names an algorithm, except on a GPU."""
        return OURS if algorithm and not self.library.chooses else self.library

    def depends_on_the_clock(self, algorithm: str) -> bool:
        """Return whether the time of a call depends on its start, as with a failure or jitter."""
        return not self._is_steady and self.carrier(algorithm).runtime.shared_memory(self.network) is None

    def alone_s(self, planned: PlannedCall, algorithm: str = "") -> float:
        """Return the seconds of a call without others of the group."""
        call, messages_s = planned.call, planned.formula_s
        if messages_s is None:
            key = id(call.schedule), id(call.network), call.size_bytes, call.element_bytes, call.is_lent
            if key not in self._messages_s:
                self._messages_s[key] = predict_time(
                    call.schedule,
                    call.network or self.network,
                    call.size_bytes,
                    element_bytes=call.element_bytes,
                    runtime=replace(self.carrier(algorithm).runtime, is_lent=call.is_lent),
                )
            messages_s = self._messages_s[key]
        return call.call_s + self._slowdown * messages_s

    def queued(self, calls: Sequence[QueuedCall], runtime: Runtime) -> list[Span]:
        """Return the times of calls in a queue, whose messages take as many times as long as those of one alone."""
        slowdown, network = self._slowdown, self.network
        if slowdown == 1:
            return time_queue(calls, network, runtime)
        # By a clock of which all messages take the usual time.
        failures = tuple(structs.replace(failure, at_s=failure.at_s / slowdown) for failure in network.spec.failures)
        network = network.with_spec(failures=failures) if failures else network
        faster = [call._replace(ready_s=call.ready_s / slowdown, call_s=call.call_s / slowdown) for call in calls]
        return [Span(*(slowdown * at_s for at_s in span)) for span in time_queue(faster, network, runtime)]

    def call_alone_s(self, call: TraceCall) -> float:
        """Return `alone_s` of a call after a computation that is not late."""
        return self.alone_s(self.call(call, computed_s=math.inf), call.algorithm)

    def relative_interval(self, call: TraceCall) -> Estimate | None:
        """Return `Plan.relative_interval` for a call; None if not known."""
        _, choice = self._schedule(call)
        return None if choice is None or self._may_share_guessed_nics else choice.relative_interval

    @property
    def _may_share_guessed_nics(self) -> bool:
        """Whether other ranks may use the NICs, whose number is not known: plans' intervals are for all their users."""
        calibration = self.network.calibration
        if calibration is None or calibration.senders_per_host is None or self.network.spec.host.nics.count:
            return False
        ranks_of_host = min(self.network.spec.ranks_per_host or self._num_ranks, self._num_ranks)
        return bool(self._hosts[0] < min(ranks_of_host, self._size))

    def _sent_bytes(self, call: TraceCall) -> int:
        size_bytes: int = call.size_bytes * (self._size if call.collective == SENDRECV else 1)  # of an all_to_all
        return max(size_bytes, 1) if call.collective == "barrier" else size_bytes

    def _schedule(self, call: TraceCall) -> tuple[Schedule, Plan | None]:
        """Return the schedule for all groups; sizes with the same partition share it."""
        algorithm, size_bytes = call.algorithm, self._sent_bytes(call)
        distance = call.peer if call.collective == SENDRECV else None
        built = self._built(call.collective, algorithm)
        variant = size_bytes if self._chooses else size_variant(*built, self._size, size_bytes)
        # The library may choose another algorithm than the one it is known by, and one that is named is not chosen.
        key = call.collective, algorithm, built[1], variant, distance
        if key not in self._schedules:
            named = None if distance is None else shift(self._size, distance)
            if algorithm:
                named = build(*built, self._size, size_bytes)
            choice = self._choice(call.collective, named, size_bytes)
            schedule = choice.schedule if choice else named or build(*built, self._size, size_bytes)
            self._schedules[key] = self._on_all_groups(schedule), choice
        return self._schedules[key]

    def _built(self, collective: str, algorithm: str) -> tuple[Collective, str]:
        kind = _simulated_as(collective)
        return (kind, algorithm) if algorithm else self.library.algorithm(kind)

    def _choice(self, collective: str, named: Schedule | None, size_bytes: int) -> Plan | None:
        """Return the library's plan, for a named schedule if given; None if it does not choose."""
        if not self._chooses:
            return None
        if named:
            return self.library.fastest_plan(named, self.network, size_bytes, self._hosts)
        kind, _ = self._built(collective, "")
        return self.library.choose(self.network, Call.on_hosts(kind.value, size_bytes, self._hosts), math.inf)

    def _on_all_groups(self, schedule: Schedule) -> Schedule:
        if len(self._groups) == 1 and self._size == self._num_ranks:
            return schedule
        return on_groups(schedule, self._groups, self._num_ranks, schedule.num_chunks, schedule.collective)

    def _why_not_chosen(self) -> str:
        if not self.library.chooses:
            return ""
        why = self.library.why_unknown(self.network, Call.on_hosts("all_reduce", 1, self._hosts))
        if not why and self.library.runtime.num_workers > 1:
            why = "several workers would be under way over one protocol only"
        if not why and not self._is_steady:
            why = "its times are drawn at random, or some of it fails"
        return f"{given_name(self.network)}: {why}" if why else ""


def _simulated_as(collective: str) -> Collective:
    if collective == "barrier":
        return Collective.ALL_REDUCE  # of one element, as ProcessGroupNCCL does it
    if collective == SENDRECV:
        return Collective.ALL_TO_ALL
    try:
        return Collective(collective)
    except ValueError:
        raise ValueError(f"{collective!r}: there is no such collective") from None


def mirrored_groups(ranks: Sequence[int], num_ranks: int) -> Ints:
    """Return (num_groups, len(ranks)): the group first, then the groups that divide the other ranks alike.

    Only a group of every k-th rank has such groups.
    """
    own = np.asarray(ranks, np.int64)
    stride = int(own[1] - own[0]) if len(own) > 1 else 1
    block = stride * len(own)
    if stride < 1 or num_ranks % block or (np.diff(own) != stride).any() or own[0] % block >= stride:
        return own[None, :]
    groups = np.arange(num_ranks).reshape(-1, len(own), stride).swapaxes(1, 2).reshape(-1, len(own))
    mine = int(np.flatnonzero(groups[:, 0] == own[0])[0])
    return np.roll(groups, -mine, axis=0)
