"""The strategies' names, and what is known of each by its name; read before torch is loaded."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from ringsim.suggestions import suggestion
from ringsim.units import decimal_number, whole_number

MAX_WHOLE = 10**6


class Number(NamedTuple):
    """The number that a strategy takes after a slash. keyword: the argument of the strategy that it becomes."""

    keyword: str
    meaning: str
    example: int
    is_whole: bool = False


BUCKET = Number("bucket_cap_mb", "the size of a bucket in MiB", 4)
EVERY = Number("every", "the number of steps from one average to the next", 8, is_whole=True)
RANK = Number("rank", "the rank of the products that are sent, a whole number", 4, is_whole=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInfo:
    """The facts of a strategy that commands need before torch is loaded.

    number: it may take one after a slash.
    is_exact: it trains as one process with the whole batch does, except for rounding.
    sends_bf16: gradients are rounded to bfloat16 before they are sent.
    leaves_mean: each parameter's `grad` becomes the mean over all ranks.
    saves_vectors: the optimizer's state is saved as vectors, not by parameter.
    keeps_state: each rank keeps its own state, which checkpoints hold.
    on_ring: it makes a group of the backend "ring".
    """

    number: Number | None = None
    is_exact: bool = True
    sends_bf16: bool = False
    leaves_mean: bool = True
    saves_vectors: bool = False
    keeps_state: bool = False
    on_ring: bool = False


_ZERO = StrategyInfo(leaves_mean=False, saves_vectors=True)
_FSDP = StrategyInfo(leaves_mean=False)
_LOCAL = StrategyInfo(number=EVERY, is_exact=False, leaves_mean=False, keeps_state=True)
_BUCKETED = StrategyInfo(number=BUCKET)

# Their classes stand in trainers/strategies, which loads torch.
STRATEGY_INFOS = {
    "none": StrategyInfo(is_exact=False, leaves_mean=False),
    "allreduce": StrategyInfo(),
    "flat": StrategyInfo(),
    "rs_ag": StrategyInfo(),
    "ring": StrategyInfo(),
    "bucketed": _BUCKETED,
    "bucketed_bf16": replace(_BUCKETED, sends_bf16=True),
    "ddp": _BUCKETED,
    "ddp_hook": _BUCKETED,
    "ddp_hook_bf16": replace(_BUCKETED, sends_bf16=True),
    "ddp_backend_ring": replace(_BUCKETED, on_ring=True),
    "zero1": _ZERO,
    "zero2": replace(_ZERO, number=BUCKET),
    "zero3": _ZERO,
    "fsdp": _FSDP,
    "fsdp_backend_ring": replace(_FSDP, on_ring=True),
    "local_sgd": _LOCAL,
    "diloco": _LOCAL,
    "powersgd": StrategyInfo(number=RANK, is_exact=False, keeps_state=True),
}
STRATEGY_NAMES = tuple(STRATEGY_INFOS)


def strategy_info(name: str) -> StrategyInfo:
    """Return the facts of a strategy, whose name may have a number. Raises ValueError for a name that there is not."""
    return STRATEGY_INFOS[parse_strategy(name)[0]]


def check_strategy(name: str) -> None:
    """Raise ValueError unless it is a strategy's name, possibly with a number that this one takes, as in "ddp/4"."""
    parse_strategy(name)


def parse_strategy(name: str) -> tuple[str, dict[str, float]]:
    """Split a name from its number, which is given by its keyword, if there is one.

    Raises ValueError for a name that there is not, or a number that cannot be.

    >>> parse_strategy("ddp/4")
    ('ddp', {'bucket_cap_mb': 4.0})
    """
    plain, slash, text = name.partition("/")
    if plain not in STRATEGY_NAMES:
        raise ValueError(f"{name!r} is not one of {', '.join(STRATEGY_NAMES)}{suggestion(plain, STRATEGY_NAMES)}")
    if not slash:
        return plain, {}
    number = STRATEGY_INFOS[plain].number
    if number is None:
        takers = ", ".join(name for name, info in STRATEGY_INFOS.items() if info.number)
        raise ValueError(f"{name!r}: {plain} takes no number; only {takers} do")
    if (value := _parse_whole(text) if number.is_whole else _parse_size(text)) is None:
        raise ValueError(f"{name!r}: after the slash must be {number.meaning}, such as {plain}/{number.example}")
    return plain, {number.keyword: value}


def steps_between_averages(name: str) -> int:
    """Return the steps from one average of the parameters to the next; 1 if ranks communicate in every step."""
    plain, number = parse_strategy(name)
    return int(number.get(EVERY.keyword, EVERY.example)) if STRATEGY_INFOS[plain].number is EVERY else 1


def _parse_whole(text: str) -> int | None:
    value = whole_number(text) or 0
    return value if 1 <= value <= MAX_WHOLE else None


def _parse_size(text: str) -> float | None:
    try:
        value = decimal_number(text)
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None
