"""`AlgorithmName`: what the name of a built-in algorithm says beside which one it is."""

from dataclasses import dataclass
from typing import Self

from ringsim.units import whole_number

MAX_SEGMENTS = 2**16
MAX_RANKS_PER_HOST = 2**16


@dataclass(frozen=True, slots=True)
class AlgorithmName:
    """`hierarchical@4/2`: the algorithm for hosts of 4 ranks, every chunk of it in 2 segments.

    ranks_per_host: None where the name does not say.
    """

    base: str
    ranks_per_host: int | None = None
    segments: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for what follows an `@` or a slash and is no number, or one out of range."""
        whole, slash, segments = text.partition("/")
        base, at, per_host = whole.partition("@")
        if slash and not _is_count(segments, MAX_SEGMENTS):
            raise ValueError(f"algorithm {text!r}: after the slash must come a number of segments, 1..{MAX_SEGMENTS}")
        if at and not _is_count(per_host, MAX_RANKS_PER_HOST):
            raise ValueError(
                f"algorithm {text!r}: after the @ must come the number of ranks of a host, 1..{MAX_RANKS_PER_HOST}"
            )
        return cls(base, int(per_host) if at else None, int(segments or 1))

    @property
    def whole(self) -> str:
        """The name without segments."""
        return self.base if self.ranks_per_host is None else f"{self.base}@{self.ranks_per_host}"


def base_name(algorithm: str) -> str:
    """`ring` of `ring/4`, and `hierarchical` of `hierarchical@4/2`; what is no such name up to its first `@` or `/`."""
    return algorithm.partition("/")[0].partition("@")[0]


def _is_count(text: str, most: int) -> bool:
    return 1 <= (whole_number(text) or 0) <= most
