"""What a strategy sends, and from that the time its gradient synchronisation should take."""

from collections.abc import Sequence
from typing import NamedTuple

from ringsim.native import LocalWork, call_overhead_s, local_s, native_schedule
from ringsim.network import Cluster
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import time_queue, work_queue
from ringsim.training_step import StepProfile


class Call(NamedTuple):
    """One collective of a synchronisation.

    size_bytes: of the whole tensor, elements of `element_bytes` each.
    lead_s: how long before the end of the backward pass it can start; 0: afterwards only.
    is_native: whether torch.distributed is called, rather than `collectives`.
    """

    schedule: Schedule
    size_bytes: int
    element_bytes: int
    lead_s: float = 0.0
    is_native: bool = False

    def queued(self, first_s: float, network: Cluster) -> work_queue.QueuedCall:
        """For a queue that begins `first_s` before the end of the backward pass."""
        call_s = call_overhead_s(network, self.is_native)
        return work_queue.QueuedCall(self.schedule, self.size_bytes, self.element_bytes, first_s - self.lead_s, call_s)


def gloo_all_reduce(num_ranks: int, size_bytes: int, element_bytes: int, lead_s: float = 0.0) -> Call:
    """What `dist.all_reduce` of so many bytes is on Gloo."""
    return Call(native_schedule(Collective.ALL_REDUCE, num_ranks, size_bytes), size_bytes, element_bytes, lead_s, True)


class Traffic(NamedTuple):
    """All that one synchronisation moves: between the ranks, and within each.

    local_bytes: what a rank walks through by itself, packing, unpacking and dividing.
    num_workers: of the calls, how many can be under way at once.
    forward_calls: those before the next forward pass, one after the other.
    """

    calls: list[Call]
    local_bytes: int
    num_workers: int = 1
    forward_calls: Sequence[Call] = ()


def predict_sync_s(traffic: Traffic, network: Cluster, num_ranks: int) -> float:
    """Seconds from the last gradient's being ready until the calls, which wait for a worker in their order, are done.

    What runs before that moment is hidden by the backward pass and not counted. A local walk is taken to be as
    fast as a reduction: both are bound by memory.
    """
    first_s = max((call.lead_s for call in traffic.calls), default=0.0)
    spans = time_queue([call.queued(first_s, network) for call in traffic.calls], network, traffic.num_workers)
    end_s = max((span.end_s for span in spans), default=0.0) - first_s
    return max(end_s, 0.0) + local_s(LocalWork(traffic.local_bytes), network, num_ranks)


def predict_step_s(traffic: Traffic, profile: StepProfile, network: Cluster, num_ranks: int, stepped: float) -> float:
    """Seconds of a whole training step. stepped: the part of the parameters that a rank's optimizer steps."""
    before_s = sum(time_queue([call.queued(0.0, network)], network, 1)[0].end_s for call in traffic.forward_calls)
    compute_s = profile.forward_s + profile.backward_s + profile.optimizer_s * stepped
    return before_s + compute_s + predict_sync_s(traffic, network, num_ranks)


def can_overlap(ranks_per_machine: int, cores: int | None) -> bool:
    """Whether communication on the CPU can go on beside the backward pass: each rank needs a second core for it."""
    return cores is not None and cores >= 2 * ranks_per_machine
