"""`Finding`: one answer of a verdict in plain words, and the words that its sentences are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from ringsim.calibration import PredictedTime
from ringsim.units import format_size, format_time

HALF = 0.5  # of a step: what takes more than the rest together bounds it


class Topic(Enum):
    """The questions that a verdict answers, in the order in which it is asked."""

    BOUND = "What limits performance?"
    ALGORITHM = "Which algorithm should you use?"
    BUCKET = "Which bucket size should you use?"
    RANKS = "What happens with twice as many ranks?"
    SURE = "How reliable are these answers?"


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer and its reasons, each a sentence; command: what to run where the data do not suffice, else empty."""

    topic: Topic
    answer: str
    reasons: tuple[str, ...] = ()
    command: str = ""


def percent(share: float) -> str:
    """Return such as 12 %; less than one per cent keeps a digit, down to a tenth."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.01 or abs(share) < 0.0005 else f"{100 * share:.1f} %"


def listed(names: Sequence[str]) -> str:
    """Return such as a, b and c; names: at least one."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def roughly(time_s: float) -> str:
    """Return a time with two digits, as many as a verdict needs."""
    return format_time(float(f"{time_s:.2g}"))


def times(factor: PredictedTime) -> str:
    """Return such as 2.1 times (1.9 to 2.4)."""
    low, high = f"{factor.low_s:.2f}", f"{factor.high_s:.2f}"
    return f"{factor.time_s:.2f} times" + (f" ({low} to {high})" if low != high else "")


def with_ends(predicted: PredictedTime) -> str:
    """Return such as 2.1 ms (1.9 ms to 2.4 ms)."""
    low, high = roughly(predicted.low_s), roughly(predicted.high_s)
    return roughly(predicted.time_s) + (f" ({low} to {high})" if low != high else "")


def by_size(names: Sequence[tuple[int, str]]) -> str:
    """Return which name holds for which sizes: a up to 64 KiB and b from 256 KiB on.

    names: a size and its name, by size.
    """
    runs: list[tuple[str, list[int]]] = [
        (name, [size for size, _ in group]) for name, group in groupby(names, key=lambda pair: pair[1])
    ]
    if len(runs) == 1:
        return runs[0][0]
    parts = [f"{runs[0][0]} up to {format_size(runs[0][1][-1])}"]
    for name, sizes in runs[1:-1]:
        first, last = format_size(sizes[0]), format_size(sizes[-1])
        parts.append(f"{name} at {first}" if first == last else f"{name} from {first} to {last}")
    parts.append(f"{runs[-1][0]} from {format_size(runs[-1][1][0])} on")
    return listed(parts)
