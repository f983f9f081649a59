"""`Library`: the algorithms of a collective library, and their costs on a host.

Sources: torch 2.13, ProcessGroupGloo.hpp (two threads, `threads = 2`), ProcessGroupGloo.cpp and the allreduce.cc,
allgather.cc and broadcast.cc of Gloo.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from ringsim.algorithms import RanksPerHost
from ringsim.libraries.call import Call
from ringsim.libraries.plan import Plan
from ringsim.limits import CHOSEN_TRANSFERS
from ringsim.network import Network
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import RULE, Runtime, predict_repeated, predict_time

DIRECT = (Collective.GATHER, Collective.SCATTER, Collective.ALL_TO_ALL)  # every block goes from one rank to one other
# glibc maps and unmaps larger blocks each time (M_MMAP_THRESHOLD_MAX, mallopt(3)): every page is then new and must be
# cleared first.
NEW_BEYOND_BYTES = 32 * 2**20
SHARED_MEMORY = "shm"  # the transport of ranks of a host that read from each other's memory


class CallCost(NamedTuple):
    """The cost of a call besides its messages and copies; 0 if the network has no such cost.

    cold_s: more after a long computation, when the caches are cold and the threads asleep; at most the computation.
    late_share, late_s: of the calls, and the time by which they are late.
    """

    call_s: float
    cold_s: float
    late_share: float
    late_s: float

    def after_s(self, computed_s: float) -> float:
        """Return the seconds of a call that is not late, after a computation since the rank's previous call."""
        return self.call_s + min(self.cold_s, computed_s)


@dataclass(frozen=True, slots=True)
class Library:
    """A library of collectives; the names of algorithms are those of `ringsim algorithms`.

    title: its name in texts. runtime: how its ranks execute a schedule.
    all_reduce, broadcast: the algorithms; if the library chooses, the algorithms assumed where its choice is unknown.
    chooses: whether it chooses the fastest of several algorithms and protocols by size. A GPU then executes its calls,
    and no thread waits for a core of the host.
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
        """Return the library over a transport, such as "shm" or "gloo".

        touched_bytes: as in `Runtime`.
        """
        runtime = replace(self.runtime, shares_memory=transport == SHARED_MEMORY, touched_bytes=touched_bytes)
        return replace(self, runtime=runtime)

    def algorithm(self, collective: Collective) -> tuple[Collective, str]:
        """Return the collective and the algorithm that carry out a collective.

        All libraries send the data of DIRECT collectives directly from rank to rank.
        """
        if collective in DIRECT:
            return collective, "direct"
        named = {Collective.ALL_REDUCE: self.all_reduce, Collective.BROADCAST: self.broadcast}
        return collective, named.get(collective, "ring")

    def schedule(self, collective: Collective, num_ranks: int, size_bytes: int) -> Schedule:
        return build(*self.algorithm(collective), num_ranks, size_bytes)

    def why_unknown(self, network: Network, call: Call) -> str:
        """Return why the choice for a call is unknown; "" if `choose` knows it."""
        del network, call
        return "it has one algorithm for all sizes"

    def choose(
        self, network: Network, call: Call, max_transfers: float = CHOSEN_TRANSFERS, runtime: Runtime = RULE
    ) -> Plan:
        """Return the library's choice for a call, by its own formula. runtime: as in `simulate`.

        Raises ValueError if the choice is unknown (see `why_unknown`) or more than `max_transfers` would be simulated.
        """
        del max_transfers, runtime
        raise self._refusal(network, self.why_unknown(network, call))

    def _refusal(self, network: Network, why: str) -> ValueError:
        return ValueError(f"{given_name(network)}: {self.title}'s choice is not known: {why}")

    def fastest_plan(
        self,
        schedule: Schedule,
        network: Network,
        size_bytes: int,
        per_host: RanksPerHost = None,
        runtime: Runtime = RULE,
    ) -> Plan | None:
        """Return the schedule over its fastest protocol; None if the library has no protocols.

        per_host: participating ranks, on every host or on each; None: all ranks of a host.
        """
        del schedule, network, size_bytes, per_host, runtime
        return None

    def time_s(
        self, schedule: Schedule, network: Network, size_bytes: int, *, measured: Network | None = None
    ) -> float:
        """Return the seconds of a schedule as the library sends it.

        measured: the network that was measured, if `network` is a better one, such as with twice the bandwidth. Its
        pace is used, since measured values, such as the steps of a ring, do not follow from better links.
        """
        del measured
        return predict_time(schedule, network, size_bytes)

    def copies(self, collective: Collective, num_ranks: int, size_bytes: int) -> tuple[float, float]:
        """Return the bytes that each rank copies in a call, and copies into a new tensor; see `copy_s`."""
        del collective, num_ranks, size_bytes
        return 0.0, 0.0

    def call_cost(self, network: Network, *, is_async: bool = False) -> CallCost:
        """Return the cost of a call on its host; is_async: whether another thread executes the call."""
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
        """Return the seconds of a call, messages included, that follows another one like it.

        A link sends a saved burst at once, but from call to call it carries no more than its rate. in_place: as in
        `Runtime`. beside_s: additional time per call.
        """
        runtime, call_s = replace(self.runtime, in_place=in_place), self.call_cost(network).call_s + beside_s
        return predict_repeated(schedule, network, size_bytes, runtime, beside_s=call_s)


class _Gloo(Library):
    """Gloo in torch.distributed: its rings, and torch's copies around them."""

    __slots__ = ()

    def algorithm(self, collective: Collective) -> tuple[Collective, str]:
        """Use a whole all_reduce for reduce_scatter_tensor, and the other direction for all_gather."""
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
    """Return the name that the user gave to the network; a uniform one has none."""
    return "the default network (--latency, --bandwidth)" if network.message_costs else network.name


GLOO = _Gloo("Gloo", Runtime(in_order=True, num_workers=2), "gloo_ring", "binomial_tree")  # works on two at once
OURS = Library("ringsim", Runtime(in_order=True, shares_memory=True), "ring", "binomial_tree", is_torch=False)
MESSAGES = Library("no library", RULE, "ring", "ring")  # a schedule takes as long as its messages alone
