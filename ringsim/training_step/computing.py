"""`Computing`: how long the computations of a trace take: as recorded, scaled, or by the peak rates of a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass

from ringsim.native import Backend
from ringsim.traces import Operator, TraceEvent
from ringsim.training_step.group_calls import element_bytes_of


@dataclass(frozen=True, slots=True)
class Roofline:
    """The peak rates of a device, by which its operators take at least as long as their FLOPs or their bytes.

    flops_per_s: by the dtype of `Operator`, or else by the bytes of an element.
    memory_bytes_per_s: that its memory reads and writes.
    multiprocessors: that do the arithmetic; 0: not known.
    memory_bytes: that its memory holds; None if that is not known.
    """

    flops_per_s: Mapping[int | str, float]
    memory_bytes_per_s: float
    multiprocessors: int = 0
    memory_bytes: int | None = None

    def seconds(self, event: TraceEvent, occupied: int = 0, is_fused: bool = False) -> float:
        """Return how long a computation takes: each operator as long as its arithmetic or its memory, if longer.

        occupied: multiprocessors that do something else; at least one is left.
        is_fused: without the operators of which a compiler may leave nothing.
        """
        share = max(1, self.multiprocessors - occupied) / self.multiprocessors if self.multiprocessors else 1.0
        operators = [operator for operator in event.operators if not (is_fused and operator.may_be_fused)]
        return sum(operator.count * self._operator_s(operator, share) for operator in operators)

    def _operator_s(self, operator: Operator, share: float) -> float:
        rates, dtype = self.flops_per_s, operator.dtype
        flops_per_s = rates.get(dtype) or rates.get(element_bytes_of(dtype)) or min(rates.values())
        return max(operator.flops / (share * flops_per_s), operator.size_bytes / self.memory_bytes_per_s)


# NVIDIA's data sheets of A100 (80 GB, SXM), H100 (SXM) and H200, dense, without sparsity (those of H100 and H200 give
# the rates of tensor cores with it, which are twice as high); multiprocessors by NVIDIA's white papers on the
# architectures Ampere and Hopper.
_A100: dict[int | str, float] = {1: 624e12, 2: 312e12, "tf32": 156e12, 4: 19.5e12, 8: 19.5e12}
_H100: dict[int | str, float] = {1: 1978.9e12, 2: 989.4e12, "tf32": 494.7e12, 4: 67e12, 8: 67e12}
_GB = 2**30  # so large are the gigabytes of these data sheets where they are memory
GPUS = {
    "a100": Roofline(_A100, 2.039e12, 108, 80 * _GB),
    "h100": Roofline(_H100, 3.35e12, 132, 80 * _GB),
    "h200": Roofline(_H100, 4.8e12, 132, 141 * _GB),
}


LOWER_BOUND = "lower bound (roofline at peak rates)"


@dataclass(frozen=True, slots=True)
class Computing:
    """Where and how fast the computations of a trace take place.

    on_gpu: whether streams do the work, and collectives are NCCL's.
    roofline: by which the operators are timed; None: computations take as long as where they were recorded.
    scale: of these times; of a roofline it is greater than 1, since nothing reaches its device's peak.
    is_fitted: whether the scale was chosen so that a step takes as long as it was measured. is_fused: as of `Roofline`.
    backend: carries out all calls of a trace that was generated, whose computations already include the cores that
    ranks share; None for a recorded trace.
    """

    on_gpu: bool = False
    roofline: Roofline | None = None
    scale: float = 1.0
    is_fitted: bool = False
    is_fused: bool = False
    backend: Backend | None = None

    @property
    def basis(self) -> str:
        """How sure the times of the computations are, in words."""
        if self.is_fitted:
            return "prediction (computations scaled to a measured step)"
        if self.scale != 1:
            return "prediction (computations scaled as asked for)"
        origin = "given" if self.backend else "recorded"
        return LOWER_BOUND if self.roofline else f"prediction (computations as {origin})"

    def seconds(self, event: TraceEvent, occupied: int = 0) -> float:
        """Return how long a computation takes. occupied: multiprocessors of the GPU that calls occupy meanwhile."""
        if self.roofline is None:
            return self.scale * event.seconds
        return self.scale * self.roofline.seconds(event, occupied, self.is_fused)


AS_RECORDED = Computing()
