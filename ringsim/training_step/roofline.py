"""`Roofline`: how long the operators of a program take at least on a device, by their FLOPs and their bytes.

Source of rates and memory: NVIDIA's data sheets of A100 (80 GB, SXM), H100 (SXM) and H200, dense, without sparsity; of
the numbers of multiprocessors: NVIDIA's white papers on the architectures Ampere and Hopper.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ringsim.traces import Operator, TraceEvent
from ringsim.training_step.group_calls import element_bytes_of


@dataclass(frozen=True, slots=True)
class Roofline:
    """The peak rates of a device.

    flops_per_s: by the bytes of an element. memory_bytes_per_s: that its memory reads and writes.
    multiprocessors: that do the arithmetic; 0: not known.
    memory_bytes: that its memory holds; None if that is not known.
    """

    flops_per_s: Mapping[int, float]
    memory_bytes_per_s: float
    multiprocessors: int = 0
    memory_bytes: int | None = None

    def seconds(self, event: TraceEvent, occupied: int = 0) -> float:
        """Return how long a computation takes: each operator as long as its arithmetic or its memory, if longer.

        occupied: multiprocessors that do something else; at least one is left.
        """
        share = max(1, self.multiprocessors - occupied) / self.multiprocessors if self.multiprocessors else 1.0
        return sum(operator.count * self._operator_s(operator, share) for operator in event.operators)

    def _operator_s(self, operator: Operator, share: float) -> float:
        flops_per_s = self.flops_per_s.get(element_bytes_of(operator.dtype), min(self.flops_per_s.values()))
        return max(operator.flops / (share * flops_per_s), operator.size_bytes / self.memory_bytes_per_s)


_H100 = {1: 1978.9e12, 2: 989.4e12, 4: 67e12, 8: 67e12}
_GB = 2**30  # so large are the gigabytes of these data sheets where they are memory
GPUS = {
    "a100": Roofline({1: 312e12, 2: 312e12, 4: 19.5e12, 8: 19.5e12}, 2.039e12, 108, 80 * _GB),
    "h100": Roofline(_H100, 3.35e12, 132, 80 * _GB),
    "h200": Roofline(_H100, 4.8e12, 132, 141 * _GB),
}
