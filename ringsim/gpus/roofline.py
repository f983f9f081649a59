"""`Roofline`: the peak rates of a device, which bound the times of its operators from below."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ringsim.traces import Operator, TraceEvent, element_bytes_of


def bits_of(dtype: str) -> str:
    """Return the key of a dtype's peak rate in a GPU's file, such as bits16 or tf32."""
    return dtype if dtype == "tf32" else f"bits{8 * element_bytes_of(dtype)}"


def share_left(multiprocessors: int, occupied: int) -> float:
    """Return the share of the multiprocessors that calls leave to computations, at least one of them."""
    return max(1, multiprocessors - occupied) / multiprocessors if multiprocessors else 1.0


def operators_of(event: TraceEvent, is_fused: bool) -> Iterable[Operator]:
    """Return a computation's operators; is_fused: without those that a compiler may fuse."""
    return (operator for operator in event.operators if not (is_fused and operator.may_be_fused))


@dataclass(frozen=True, slots=True)
class Roofline:
    """The peak rates of a device.

    flops_per_s: by the key of `bits_of`; without one, tf32 has the rate of bits32, another dtype the lowest rate.
    multiprocessors: 0 if not known.
    memory_bytes: capacity; None if not known.
    """

    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    multiprocessors: int = 0
    memory_bytes: int | None = None

    def peak(self, dtype: str) -> float:
        key, rates = bits_of(dtype), self.flops_per_s
        # A GPU without tf32 computes products for which the program allows it in float32.
        return rates.get(key) or (rates.get("bits32") if key == "tf32" else None) or min(rates.values())

    def seconds(self, event: TraceEvent, occupied: int = 0, is_fused: bool = False) -> float:
        """Return the time of a computation: for each operator the longer of arithmetic and memory accesses.

        occupied: multiprocessors used by calls.
        """
        share = share_left(self.multiprocessors, occupied)
        return sum(operator.count * self._operator_s(operator, share) for operator in operators_of(event, is_fused))

    def _operator_s(self, operator: Operator, share: float) -> float:
        arithmetic_s = operator.flops / (share * self.peak(operator.dtype)) if operator.flops else 0.0
        return max(arithmetic_s, operator.size_bytes / self.memory_bytes_per_s)
