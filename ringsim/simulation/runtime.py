"""`Runtime`: how the ranks that execute a collective wait, and what its messages go over."""

from dataclasses import dataclass

from ringsim.network import Network, SharedMemory, Topology


@dataclass(frozen=True, slots=True)
class Runtime:
    """How the ranks that execute a collective wait, and what its messages go over.

    in_order: whether a rank waits for one thing at a time, as ranks on Gloo do: it applies all that it receives in step
    order, and before it sends to another peer than before on a channel it has applied everything that it receives in
    earlier steps. Otherwise all that the rule of execution permits happens as early as it may.
    num_workers: how many collectives a rank works on at once.
    shares_memory: whether ranks of a host read from each other's memory where the network describes it, as those of
    `collectives` do. touched_bytes: of memory, from one collective to the next, see `SharedMemoryTopology`.
    in_place: whether a reduce_scatter's output is a part of its input, as in the rows "in place" of a benchmark.
    is_lent: whether tensors lie in memory that the ranks of a host share, as those of `collectives.empty`.

        >>> from ringsim import Runtime, load_network, predict_time, ring_all_reduce
        >>> in_order = Runtime(in_order=True)
        >>> round(predict_time(ring_all_reduce(4), load_network("gbe"), 2**20, runtime=in_order), 6)
        0.012709
    """

    in_order: bool = False
    num_workers: int = 1
    shares_memory: bool = False
    touched_bytes: int | None = None
    in_place: bool = False
    is_lent: bool = False

    def shared_memory(self, network: Network) -> SharedMemory | None:
        """Return the costs of messages through shared memory; None if they go over the links of the network."""
        return network.shared_memory if self.shares_memory else None

    def topology(self, network: Network, num_ranks: int) -> Topology:
        """Return the topology that messages see, through shared memory if all ranks publish as much as they can."""
        if self.shared_memory(network) is None:
            return network.topology(num_ranks)
        return network.memory_topology(num_ranks, touched_bytes=self.touched_bytes)


RULE = Runtime()
IN_ORDER = Runtime(in_order=True)
