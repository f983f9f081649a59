"""`Runtime`: how the ranks that execute a collective wait, and what its messages go over."""

from dataclasses import dataclass

from ringsim.network import AnyNetwork, SharedMemoryNetwork, memory_of, shares_memory


@dataclass(frozen=True, slots=True)
class Runtime:
    """How the ranks that execute a collective wait, and what its messages go over.

    in_order: whether a rank waits for one thing at a time, as ranks on Gloo do: it applies all that it receives in step
    order, and before it sends to another peer than before on a channel it has applied everything that it receives in
    earlier steps. Otherwise all that the rule of execution permits happens as early as it may.
    num_workers: how many collectives a rank works on at once.
    is_torch: whether calls are those of torch.distributed; those of `collectives` go through shared memory where the
    network describes it.
    in_place: whether a reduce_scatter's output is a part of its input, as in the rows "in place" of a benchmark.
    is_lent: whether tensors lie in memory that the ranks of a host share, as those of `collectives.empty`.

        >>> from ringsim import Runtime, load_network, predict_time, ring_all_reduce
        >>> in_order = Runtime(in_order=True)
        >>> round(predict_time(ring_all_reduce(4), load_network("gbe"), 2**20, runtime=in_order), 6)
        0.012709
    """

    in_order: bool = False
    num_workers: int = 1
    is_torch: bool = True
    in_place: bool = False
    is_lent: bool = False

    def shared_memory(self, network: AnyNetwork, touched_bytes: int | None = None) -> SharedMemoryNetwork | None:
        """Return the shared memory that messages go through; None if they go over `network` itself.

        touched_bytes: see `SharedMemoryNetwork`; a network that is one already keeps its own.
        """
        if memory := memory_of(network):
            return memory
        return None if self.is_torch or not shares_memory(network) else SharedMemoryNetwork(network, touched_bytes)

    def network(self, network: AnyNetwork, touched_bytes: int | None = None) -> AnyNetwork:
        """Return what messages go over: shared memory, or `network` itself."""
        return self.shared_memory(network, touched_bytes) or network


RULE = Runtime()
IN_ORDER = Runtime(in_order=True)
