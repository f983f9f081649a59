"""`Roofline`: how long the operators of a program take at least on a device, by their FLOPs and their bytes.

Source of rates and memory: NVIDIA's data sheets of A100 (80 GB, SXM), H100 (SXM) and H200, dense, without sparsity.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ringsim.traces import Operator, TraceEvent
from ringsim.training_step.group_calls import element_bytes_of


@dataclass(frozen=True, slots=True)
class Roofline:
    """The peak rates of a device.

    flops_per_s: by the bytes of an element. memory_bytes_per_s: that its memory reads and writes.
    memory_bytes: that its memory holds; None if that is not known.
    """

    flops_per_s: Mapping[int, float]
    memory_bytes_per_s: float
    memory_bytes: int | None = None

    def seconds(self, event: TraceEvent) -> float:
        """Return how long a computation takes: each operator as long as its arithmetic or its memory, if longer."""
        return sum(operator.count * self._operator_s(operator) for operator in event.operators)

    def _operator_s(self, operator: Operator) -> float:
        flops_per_s = self.flops_per_s.get(element_bytes_of(operator.dtype), min(self.flops_per_s.values()))
        return max(operator.flops / flops_per_s, operator.size_bytes / self.memory_bytes_per_s)


_H100 = {1: 1978.9e12, 2: 989.4e12, 4: 67e12, 8: 67e12}
_GB = 2**30  # so large are the gigabytes of these data sheets where they are memory
GPUS = {
    "a100": Roofline({1: 312e12, 2: 312e12, 4: 19.5e12, 8: 19.5e12}, 2.039e12, 80 * _GB),
    "h100": Roofline(_H100, 3.35e12, 80 * _GB),
    "h200": Roofline(_H100, 4.8e12, 141 * _GB),
}
