"""The names of the strategies, checked before torch is loaded."""

import math
from typing import NamedTuple

from ringsim.suggestions import suggestion
from ringsim.units import decimal_number, whole_number

STRATEGY_NAMES = (
    "none",
    "allreduce",
    "flat",
    "rs_ag",
    "ring",
    "bucketed",
    "bucketed_bf16",
    "ddp",
    "ddp_ring",
    "ddp_ring_bf16",
    "ddp_on_ring",
    "zero1",
    "zero2",
    "zero3",
    "fsdp",
    "fsdp_on_ring",
    "local_sgd",
    "diloco",
    "powersgd",
)
WITH_BUCKETS = tuple(name for name in STRATEGY_NAMES if name.startswith(("bucketed", "ddp", "zero2")))
SHARDED = ("zero1", "zero2", "zero3", "fsdp", "fsdp_on_ring")  # with which a rank has the mean of a share only
WITH_VECTORS = ("zero1", "zero2", "zero3")  # whose optimizer state is saved as vectors, not by parameter
ON_RING = ("ddp_on_ring", "fsdp_on_ring")  # which make a group of the backend "ring"
INEXACT = ("none", "local_sgd", "diloco", "powersgd")  # which do not train as one process with the whole batch does
WITH_STATE = ("local_sgd", "diloco", "powersgd")  # whose ranks each keep a state of their own, which checkpoints hold


class Number(NamedTuple):
    """The number that a strategy takes after a slash. keyword: the argument of the strategy that it becomes."""

    keyword: str
    meaning: str
    example: int
    is_whole: bool = False


BUCKET = Number("bucket_cap_mb", "the size of a bucket in MiB", 4)
EVERY = Number("every", "the number of steps from one average to the next", 8, is_whole=True)
RANK = Number("rank", "the rank of the products that are sent, a whole number", 4, is_whole=True)
NUMBERS = {**dict.fromkeys(WITH_BUCKETS, BUCKET), "local_sgd": EVERY, "diloco": EVERY, "powersgd": RANK}
MAX_WHOLE = 10**6


def check_strategy(name: str) -> None:
    """Raise ValueError unless it is a strategy's name, possibly with a number that this one takes, as in "ddp/4"."""
    parse_strategy(name)


def plain_name(name: str) -> str:
    """`ddp` of `ddp/4`, whether there is such a strategy or not."""
    return name.partition("/")[0]


def parse_strategy(name: str) -> tuple[str, dict[str, float]]:
    """The name without its number, and the number by its keyword, if there is one.

    Raises ValueError for a name that there is not, or a number that cannot be.

    >>> parse_strategy("ddp/4")
    ('ddp', {'bucket_cap_mb': 4.0})
    """
    plain, slash, text = name.partition("/")
    if plain not in STRATEGY_NAMES:
        raise ValueError(f"{name!r} is not one of {', '.join(STRATEGY_NAMES)}{suggestion(plain, STRATEGY_NAMES)}")
    if not slash:
        return plain, {}
    if plain not in NUMBERS:
        raise ValueError(f"{name!r}: {plain} takes no number; only {', '.join(NUMBERS)} do")
    number = NUMBERS[plain]
    if (value := _parse_whole(text) if number.is_whole else _parse_size(text)) is None:
        raise ValueError(f"{name!r}: after the slash must be {number.meaning}, such as {plain}/{number.example}")
    return plain, {number.keyword: value}


def steps_between_averages(name: str) -> int:
    """Of a strategy that averages parameters every few steps; 1 of all others, which communicate in every step."""
    plain, number = parse_strategy(name)
    return int(number.get(EVERY.keyword, EVERY.example)) if NUMBERS.get(plain) is EVERY else 1


def _parse_whole(text: str) -> int | None:
    value = whole_number(text) or 0
    return value if 1 <= value <= MAX_WHOLE else None


def _parse_size(text: str) -> float | None:
    try:
        value = decimal_number(text)
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None
