"""`Runtime`: who executes a collective, which decides how ranks wait, what messages go over, and what a call costs."""

from dataclasses import dataclass

from ringsim.network import AnyNetwork, Processor, SharedMemory, SharedMemoryNetwork, memory_of, shares_memory


@dataclass(frozen=True, slots=True)
class Runtime:
    """Who executes a collective: how a rank waits, what its messages go over, and what a call costs.

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

    def call_s(self, network: AnyNetwork, *, computed_s: float = 0.0, is_async: bool = False) -> float:
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

    def late_calls(self, network: AnyNetwork, *, is_async: bool = False) -> tuple[float, float]:
        """Return the share of the calls that are late, and by how many seconds; 0, 0 if the network does not say.

        is_async: as of `call_s`.
        """
        processor = network.spec.processor
        if self.is_torch:
            return processor.torch_late_share, processor.torch_late_s
        if is_async:
            return processor.async_late_share, processor.async_late_s
        costs = self._costs(network)
        return costs.late_share, costs.late_s

    def _costs(self, network: AnyNetwork) -> Processor | SharedMemory:
        """Return what says the costs of a call of ours."""
        shared = self.shared_memory(network)
        return network.spec.processor if shared is None else shared.costs


RULE = Runtime()
IN_ORDER = Runtime(in_order=True)
OURS = Runtime(in_order=True, is_torch=False)  # of `collectives`; its backend "ring" has one queue
GLOO = Runtime(in_order=True, num_workers=2)  # works on two collectives at once
NCCL = RULE  # a process group has one stream: one collective after another
