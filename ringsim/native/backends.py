"""What torch.distributed does by itself: the algorithms of its backends, and what a call of it costs.

Sources: torch 2.13, ProcessGroupGloo.hpp (two threads, `threads = 2`), ProcessGroupGloo.cpp and Gloo's own
allreduce.cc, allgather.cc and broadcast.cc.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ringsim.algorithms import gloo_ring_all_gather
from ringsim.network import AnyNetwork, Cluster, SharedMemoryNetwork
from ringsim.registry import build, size_variant
from ringsim.schedule import Collective, Schedule


@dataclass(frozen=True, slots=True)
class Backend:
    """How a process group carries out what DDP asks of it; the names are those of `ringsim algorithms`.

    num_workers: how many collectives a rank works on at once.
    is_native: whether calls are those of torch.distributed, rather than those of `collectives`.
    in_order: whether a rank waits for one thing at a time, as `simulate` has it.
    chooses: whether its library has several algorithms and protocols, and takes by size what is over first; all_reduce
    is what stands for them on a network that does not describe the library.
    """

    num_workers: int
    all_reduce: str
    broadcast: str
    is_native: bool = True
    in_order: bool = True
    chooses: bool = False


# Gloo works on two collectives at once and broadcasts along a binomial tree. A process group of NCCL has one stream,
# and that of the backend "ring" one queue: one collective after another.
BACKENDS = {
    "gloo": Backend(2, "gloo_ring", "binomial_tree"),
    "nccl": Backend(1, "ring", "ring", in_order=False, chooses=True),
    "ring": Backend(1, "ring", "binomial_tree", is_native=False),
}


def native_schedule(collective: Collective, num_ranks: int, size_bytes: int) -> Schedule:
    """What torch.distributed on Gloo does for a tensor of `size_bytes`.

    all_reduce is Gloo's ring, with its own number of segments; reduce_scatter_tensor copies its input and does a whole
    all_reduce; all_gather is a ring in the other direction.

    Raises ValueError for a collective that is not known here.
    """
    if collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        return build(Collective.ALL_REDUCE, "gloo_ring", num_ranks, size_bytes)
    if collective is Collective.ALL_GATHER:
        return gloo_ring_all_gather(num_ranks)
    raise ValueError(f"what torch.distributed does for {collective.value} is not known here")


def all_reduce_by_size(algorithm: str, num_ranks: int) -> Callable[[int], Schedule]:
    """The schedule of an all_reduce for a number of bytes; each is built once.

    Raises ValueError for an algorithm that there is not.
    """
    build(Collective.ALL_REDUCE, algorithm, num_ranks)  # so that a wrong name is an error now
    by_variant: dict[int, Schedule] = {}

    def of_size(size_bytes: int) -> Schedule:
        variant = size_variant(Collective.ALL_REDUCE, algorithm, num_ranks, size_bytes)
        if variant not in by_variant:
            by_variant[variant] = build(Collective.ALL_REDUCE, algorithm, num_ranks, size_bytes)
        return by_variant[variant]

    return of_size


def network_of_calls(network: AnyNetwork, is_native: bool, touched_bytes: int | None = None) -> AnyNetwork:
    """What the messages of a call go over: those of `collectives` through shared memory, if the network describes it.

    is_native: of torch.distributed, rather than of `collectives`. touched_bytes: see `SharedMemoryNetwork`.
    """
    return shared_memory_of_calls(network, is_native, touched_bytes) or network


def shared_memory_of_calls(
    network: AnyNetwork, is_native: bool, touched_bytes: int | None = None
) -> SharedMemoryNetwork | None:
    """The same if it is shared memory; None if messages go over `network` itself."""
    return None if is_native else SharedMemoryNetwork.of(network, touched_bytes)


def call_overhead_s(network: AnyNetwork, is_native: bool, after_computing: bool = False) -> float:
    """Seconds that a call takes beside its messages, as far as the network says; 0 for one that does not.

    is_native: of torch.distributed, rather than of `collectives`.
    after_computing: whether the rank has computed since the call before, so that nothing of it is in the caches.
    """
    if not isinstance(network, Cluster):
        return 0.0
    shared = shared_memory_of_calls(network, is_native)
    costs = network.spec.processor if shared is None else shared.costs
    call_s, cold_s = costs.call_s, costs.cold_call_s
    if is_native:
        call_s, cold_s = network.spec.processor.torch_call_s, network.spec.processor.cold_torch_call_s
    return call_s + cold_s * after_computing
