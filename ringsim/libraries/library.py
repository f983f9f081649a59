"""`Library`: who carries out the collectives of a process group, with which algorithms, and at what cost on its host.

Sources: torch 2.13, ProcessGroupGloo.hpp (two threads, `threads = 2`), ProcessGroupGloo.cpp and the
allreduce.cc, allgather.cc and broadcast.cc of Gloo.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

from ringsim.algorithms import RanksPerHost
from ringsim.libraries.call import Call
from ringsim.libraries.plan import MAX_TRANSFERS, Plan
from ringsim.network import Network, Processor, SharedMemory
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import RULE, Runtime, predict_repeated, predict_time

DIRECT = (Collective.GATHER, Collective.SCATTER, Collective.ALL_TO_ALL)  # what goes between two ranks only
# What is larger glibc asks the system for, and gives back, each time (M_MMAP_THRESHOLD_MAX, mallopt(3)): then every
# page is new and must be cleared first.
NEW_BEYOND_BYTES = 32 * 2**20


SHARED_MEMORY = "shm"  # the transport of ranks of a host that read from each other's memory


@dataclass(frozen=True, slots=True)
class Library:
    """A library of collectives; the names of algorithms are those of `ringsim algorithms`.

    title: its name in texts. runtime: how its ranks execute a schedule.
    all_reduce, broadcast: the algorithms; of a library that chooses those that stand for its choice where that is not
    known.
    chooses: whether it has several algorithms and protocols, and takes by size what is over first. Then a GPU carries
    out its calls, and no thread waits for a core of the host.
    is_torch: whether calls are those of torch.distributed.
    """

    title: str
    runtime: Runtime
    all_reduce: str
    broadcast: str
    chooses: bool = False
    is_torch: bool = True

    def with_algorithm(self, all_reduce: str) -> Self:
        """Return the library that reduces by this algorithm, whatever it would choose."""
        return replace(self, all_reduce=all_reduce, chooses=False)

    def over(self, transport: str, touched_bytes: int | None = None) -> Self:
        """Return the library on ranks whose messages go over a transport, such as "shm" or "gloo".

        touched_bytes: as of `Runtime`.
        """
        runtime = replace(self.runtime, shares_memory=transport == SHARED_MEMORY, touched_bytes=touched_bytes)
        return replace(self, runtime=runtime)

    def algorithm(self, collective: Collective) -> tuple[Collective, str]:
        """Return the collective and the algorithm by which a process group carries out a collective.

        All libraries send what goes between two ranks only (DIRECT) straight.
        """
        if collective in DIRECT:
            return collective, "direct"
        named = {Collective.ALL_REDUCE: self.all_reduce, Collective.BROADCAST: self.broadcast}
        return collective, named.get(collective, "ring")

    def schedule(self, collective: Collective, num_ranks: int, size_bytes: int) -> Schedule:
        """Return the schedule that stands for a call of `size_bytes`."""
        return build(*self.algorithm(collective), num_ranks, size_bytes)

    def why_unknown(self, network: Network, call: Call) -> str:
        """Return why its choice for a call is not known; "" if `choose` can tell."""
        del network, call
        return "it has one algorithm for all sizes"

    def choose(
        self, network: Network, call: Call, max_transfers: float = MAX_TRANSFERS, runtime: Runtime = RULE
    ) -> Plan:
        """Return the choice of the library for a call by its own formula. runtime: as in `simulate`.

        Raises ValueError where it is not known, see `why_unknown`, and where more than `max_transfers` would have to be
        simulated.
        """
        del max_transfers, runtime
        raise self._refusal(network, self.why_unknown(network, call))

    def _refusal(self, network: Network, why: str) -> ValueError:
        return ValueError(f"{given_name(network)}: {self.title}'s choice is not known: {why}")

    def plans(
        self, schedule: Schedule, network: Network, size_bytes: int, per_host: RanksPerHost, measured: Network
    ) -> list[Plan]:
        """Return the schedule over each protocol of the library that it may take; none if it has no protocols.

        per_host: ranks that take part, on every host or on each; None: all that a host has.
        measured: the network of which `network` is a better one, such as with twice the bandwidth. The schedule keeps
        the pace that it has there, as what was measured there, such as the steps of a ring, does not follow from better
        links.
        """
        del schedule, network, size_bytes, per_host, measured
        return []

    def fastest_plan(
        self,
        schedule: Schedule,
        network: Network,
        size_bytes: int,
        per_host: RanksPerHost = None,
        runtime: Runtime = RULE,
    ) -> Plan | None:
        """Return that of the `plans` by which the schedule ends first; None if there is none."""
        plans = self.plans(schedule, network, size_bytes, per_host, network)
        return min(plans, key=lambda plan: plan.time_s(runtime=runtime), default=None)

    def time_s(
        self, schedule: Schedule, network: Network, size_bytes: int, *, measured: Network | None = None
    ) -> float:
        """Return the seconds of a schedule as the library sends it. measured: as of `plans`."""
        plans = self.plans(schedule, network, size_bytes, None, measured or network)
        return min(plan.time_s() for plan in plans) if plans else predict_time(schedule, network, size_bytes)

    def copies(self, collective: Collective, num_ranks: int, size_bytes: int) -> tuple[float, float]:
        """Return the bytes that each rank copies in a call, and copies into a new tensor; see `copy_s`."""
        del collective, num_ranks, size_bytes
        return 0.0, 0.0

    def call_s(self, network: Network, *, computed_s: float = 0.0, is_async: bool = False) -> float:
        """Return the seconds that a call takes besides its messages; 0 if the network does not say.

        computed_s: for which the rank has computed since the call before. After a long computation a call finds nothing
        in the caches, and its threads asleep; what a short one has cost it takes no longer than the computation itself.
        is_async: whether another thread carries it out.
        """
        processor = network.spec.processor
        if self.is_torch:
            return processor.torch_call_s + min(processor.cold_torch_call_s, computed_s)
        costs = self._costs(network)
        return costs.call_s + min(costs.cold_call_s, computed_s) + processor.async_call_s * is_async

    def late_calls(self, network: Network, *, is_async: bool = False) -> tuple[float, float]:
        """Return the share of the calls that are late, and by how many seconds; 0, 0 if the network does not say.

        is_async: as of `call_s`.
        """
        processor = network.spec.processor
        if self.chooses:
            return 0.0, 0.0
        if self.is_torch:
            return processor.torch_late_share, processor.torch_late_s
        if is_async:
            return processor.async_late_share, processor.async_late_s
        costs = self._costs(network)
        return costs.late_share, costs.late_s

    def _costs(self, network: Network) -> Processor | SharedMemory:
        """Return what says the costs of a call that is not torch's."""
        return self.runtime.shared_memory(network) or network.spec.processor

    def predict_call(
        self, schedule: Schedule, network: Network, size_bytes: int, *, in_place: bool = False, beside_s: float = 0.0
    ) -> float:
        """Return the seconds of a call that follows another one like it: of the call itself, and of its messages.

        A link that has saved up a burst lets it pass at once, but call after call it carries no more than its rate.

        in_place: as of `Runtime`. beside_s: what every call does besides.
        """
        runtime, call_s = replace(self.runtime, in_place=in_place), self.call_s(network) + beside_s
        return predict_repeated(schedule, network, size_bytes, runtime, beside_s=call_s)


class _Gloo(Library):
    """Gloo as torch.distributed uses it: its rings, and the copies that torch makes around them."""

    __slots__ = ()

    def algorithm(self, collective: Collective) -> tuple[Collective, str]:
        """Return the same; reduce_scatter_tensor does a whole all_reduce, and all_gather goes the other way round."""
        if collective is Collective.REDUCE_SCATTER:
            return Collective.ALL_REDUCE, self.all_reduce
        return (collective, "gloo_ring") if collective is Collective.ALL_GATHER else super().algorithm(collective)

    def copies(self, collective: Collective, num_ranks: int, size_bytes: int) -> tuple[float, float]:
        """Return those of reduce_scatter_tensor and all_gather_into_tensor."""
        if collective is Collective.REDUCE_SCATTER:
            return size_bytes / num_ranks, size_bytes
        return (size_bytes, size_bytes) if collective is Collective.ALL_GATHER else (0.0, 0.0)


def copy_s(network: Network, num_ranks: int, copied: float, cloned: float = 0.0) -> float:
    """Return the seconds in which each of the ranks copies `copied` bytes, and `cloned` ones to a new tensor.

    Copying is taken to be as fast as adding: both are bound by memory.
    """
    rank = network.spec.processor
    clone_rate = rank.first_touch_bytes_per_s if cloned > NEW_BEYOND_BYTES else rank.reduce_bytes_per_s
    # All ranks do it at once, and a host may have fewer cores than ranks.
    waiting = max(1.0, (network.spec.ranks_per_host or num_ranks) / (network.spec.host.cores or math.inf))
    return (copied / rank.reduce_bytes_per_s + cloned / clone_rate) * waiting


def given_name(network: Network) -> str:
    """Return the name of a network as its user gave it; a uniform one has none."""
    return "the default network (--latency, --bandwidth)" if network.message_costs else network.name


GLOO = _Gloo("Gloo", Runtime(in_order=True, num_workers=2), "gloo_ring", "binomial_tree")  # works on two at once
OURS = Library("ringsim", Runtime(in_order=True, shares_memory=True), "ring", "binomial_tree", is_torch=False)
MESSAGES = Library("no library", RULE, "ring", "ring")  # a schedule takes as long as its messages alone
