"""DDP's buckets: which gradients are all-reduced together, and in which order.

Source: torch 2.13, `_BucketCapacityConfig` and `_build_reducer` in torch/nn/parallel/distributed.py, and
`compute_bucket_assignment_by_size` and `Reducer::rebuild_buckets` in torch/csrc/distributed/c10d/reducer.cpp.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from ringsim.training_step.profile import Parameter, StepProfile
from ringsim.units import MAX_VALUE

MIB = 2**20
DEFAULT_CAP_BYTES = 25 * MIB
DEFAULT_FIRST_CAP_BYTES = MIB  # a small first bucket, so that sending can begin early


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """At which size a bucket is closed: the first of each dtype and device, and every other.

    Raises ValueError for a cap below 1 byte.
    """

    first_bytes: int = DEFAULT_FIRST_CAP_BYTES
    rest_bytes: int = DEFAULT_CAP_BYTES

    def __post_init__(self) -> None:
        if min(self.first_bytes, self.rest_bytes) < 1:
            raise ValueError(f"caps of {self.first_bytes} and {self.rest_bytes} bytes: must be at least 1 byte")

    @classmethod
    def from_mb(cls, bucket_cap_mb: float | None) -> "BucketCaps":
        """Return the caps that DDP makes of its `bucket_cap_mb`, in MiB; if given, all buckets have the same."""
        if bucket_cap_mb is None:
            return cls()
        if not 0 < bucket_cap_mb <= MAX_VALUE / MIB:
            raise ValueError(f"bucket_cap_mb {bucket_cap_mb}: must be finite and greater than 0")
        return cls(int(bucket_cap_mb * MIB), int(bucket_cap_mb * MIB))

    def __str__(self) -> str:
        if self.first_bytes == self.rest_bytes:
            return f"{self.rest_bytes / MIB:g}"
        return f"{self.rest_bytes / MIB:g} ({self.first_bytes / MIB:g} first)"


class Phase(Enum):
    """The step of the training, as buckets are made differently.

    FIRST: the first, or with gradient accumulation the first that synchronises: a bucket for each dtype and device.
    REBUILT: every later one: in the order in which the gradients became ready in the first.
    UNUSED: all steps with `find_unused_parameters`: in the reverse of the order of registration, never rebuilt.
    """

    FIRST = "first"
    REBUILT = "rebuilt"
    UNUSED = "unused"


def assign_buckets(profile: StepProfile, caps: BucketCaps, phase: Phase = Phase.REBUILT) -> list[list[int]]:
    """Return the numbers of the parameters in each bucket, the buckets in the order in which DDP launches them."""
    parameters = profile.parameters
    if phase is Phase.REBUILT:
        return fill_buckets(profile.order_of_readiness(), parameters, caps)
    initial = caps if phase is Phase.UNUSED else None
    buckets = fill_buckets(range(len(parameters)), parameters, initial)
    return sorted(buckets, key=min, reverse=True)


def fill_buckets(order: Iterable[int], parameters: Sequence[Parameter], caps: BucketCaps | None) -> list[list[int]]:
    """Append each parameter to the bucket of its dtype and device, and close the bucket once it has reached its cap.

    Buckets therefore exceed their caps, and no parameter is split. Buckets still open at the end follow, one for each
    dtype and device, in reverse order of appearance: the reducer iterates over a hash table, whose order is the C++
    library's. caps: None for buckets without limit.
    """
    closed: list[list[int]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    filled_bytes: dict[Hashable, int] = {}
    cap_bytes: dict[Hashable, int] = {}
    for index in order:
        parameter = parameters[index]
        key = parameter.dtype, parameter.device
        bucket = open_buckets.setdefault(key, [])
        bucket.append(index)
        filled_bytes[key] = filled_bytes.get(key, 0) + parameter.size_bytes
        if caps and filled_bytes[key] >= cap_bytes.get(key, caps.first_bytes):
            closed.append(bucket)
            open_buckets[key], filled_bytes[key], cap_bytes[key] = [], 0, caps.rest_bytes
    return closed + [bucket for bucket in reversed(open_buckets.values()) if bucket]
