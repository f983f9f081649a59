"""`Network`: what sending and reducing cost on a machine."""

import math
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class Network:
    """Every pair of ranks has a link of its own, all alike; nothing is shared.

    A message of m bytes holds its link for `overhead_s + m / bandwidth_bytes_per_s`, arrives `latency_s` after
    that, and is then applied, which takes `m / reduce_bytes_per_s` of the receiving rank if it is reduced.

    latency_s: from the last byte's leaving to the receiver's having it. Pipelines: many messages can be on the way.
    bandwidth_bytes_per_s: of one link, in each direction.
    reduce_bytes_per_s: bytes of a received chunk that a rank adds in a second; infinite: reducing is free.
    overhead_s: per message; does not pipeline, it spaces the messages of a pair (LogGP's gap g).

    Raises ValueError for a value that is negative or not a number, or a rate that is zero.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    reduce_bytes_per_s: float = math.inf
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_per_s"):
                if not value > 0:
                    raise ValueError(f"{field.name} {value}: must be greater than 0")
            elif not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{field.name} {value}: must be finite and not negative")

    def as_dict(self) -> dict[str, float | None]:
        """The fields for JSON; an infinite rate becomes None."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}
