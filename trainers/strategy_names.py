"""The names of the strategies, checked before torch is loaded."""

import math

from ringsim.suggestions import suggestion

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
)
WITH_BUCKETS = tuple(name for name in STRATEGY_NAMES if name.startswith(("bucketed", "ddp")))


def check_strategy(name: str) -> None:
    """Raise ValueError unless it is a strategy's name, for one with buckets possibly with their size, as in "ddp/4"."""
    plain, slash, cap = name.partition("/")
    if plain not in STRATEGY_NAMES:
        raise ValueError(f"{name!r} is not one of {', '.join(STRATEGY_NAMES)}{suggestion(plain, STRATEGY_NAMES)}")
    if slash and plain not in WITH_BUCKETS:
        raise ValueError(f"{name!r}: {plain} has no buckets; only {', '.join(WITH_BUCKETS)} have")
    if slash and not _is_cap(cap):
        raise ValueError(f"{name!r}: after the slash must be the size of a bucket in MiB, such as {plain}/4")


def _is_cap(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return value > 0 and math.isfinite(value)
