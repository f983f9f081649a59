"""The table of strategies: the name of each, its class, and its properties; read before torch is loaded."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from ringsim.suggestions import suggestion
from ringsim.units import decimal_number, whole_number

MAX_NUMBER = 10**6


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
    """A row of the table of strategies; commands read it before torch is loaded.

    sync: its class, or the function that makes one, as MODULE.NAME in trainers/strategies.
    wire: the dtype that gradients are rounded to before they are sent; None: their own.
    backend: "ring" if torch's own wrapper sends on a process group of that backend; None: on the group it is given.
    number: the number that may follow its name.
    is_exact: it trains as one process with the whole batch does, except for rounding.
    leaves_mean: each parameter's `grad` becomes the mean over all ranks.
    saves_vectors: the optimizer's state is saved as vectors, not by parameter.
    keeps_state: each rank keeps its own state, which checkpoints hold.
    """

    sync: str
    wire: str | None = None
    backend: str | None = None
    number: Number | None = None
    is_exact: bool = True
    leaves_mean: bool = True
    saves_vectors: bool = False
    keeps_state: bool = False


_BUCKETED = StrategyInfo(sync="bucketed.Bucketed", number=BUCKET)
_HOOK = StrategyInfo(sync="ddp.DdpHook", number=BUCKET)
_LOCAL = StrategyInfo(sync="local_sgd.LocalSgd", number=EVERY, is_exact=False, leaves_mean=False, keeps_state=True)

STRATEGY_INFOS = {
    "none": StrategyInfo(sync="plain.NoSync", is_exact=False, leaves_mean=False),
    "allreduce": StrategyInfo(sync="plain.AllReduce"),
    "flat": StrategyInfo(sync="plain.Flat"),
    "rs_ag": StrategyInfo(sync="plain.ReduceScatterAllGather"),
    "ring": StrategyInfo(sync="plain.Ring"),
    "bucketed": _BUCKETED,
    "bucketed_bf16": replace(_BUCKETED, wire="bfloat16"),
    "ddp": StrategyInfo(sync="ddp.Ddp", number=BUCKET),
    "ddp_hook": _HOOK,
    "ddp_hook_bf16": replace(_HOOK, wire="bfloat16"),
    "ddp_backend_ring": StrategyInfo(sync="ddp.DdpInPlace", backend="ring", number=BUCKET),
    "zero1": StrategyInfo(sync="zero.Zero1", leaves_mean=False, saves_vectors=True),
    "zero2": StrategyInfo(sync="zero.Zero2", number=BUCKET, leaves_mean=False, saves_vectors=True),
    "zero3": StrategyInfo(sync="zero3.Zero3", leaves_mean=False, saves_vectors=True),
    "fsdp": StrategyInfo(sync="fsdp.Fsdp", leaves_mean=False),
    "fsdp_backend_ring": StrategyInfo(sync="fsdp.Fsdp", backend="ring", leaves_mean=False),
    "local_sgd": _LOCAL,
    "diloco": replace(_LOCAL, sync="local_sgd.diloco"),
    "powersgd": StrategyInfo(sync="power_sgd.PowerSgd", number=RANK, is_exact=False, keeps_state=True),
}
STRATEGY_NAMES = tuple(STRATEGY_INFOS)


def strategy_info(name: str) -> StrategyInfo:
    """Return the facts of a strategy, whose name may have a number. Raises ValueError for a name that there is not."""
    return STRATEGY_INFOS[parse_strategy(name)[0]]


def parse_strategy(name: str) -> tuple[str, dict[str, float]]:
    """Split a name from its number, which is given by its keyword, if there is one.

    Raises ValueError for an unknown name, and for a number that the strategy does not take.

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
    try:
        value = (whole_number(text) or 0) if number.is_whole else decimal_number(text)
    except ValueError:
        value = 0
    if not 0 < value <= MAX_NUMBER:
        raise ValueError(f"{name!r}: after the slash must be {number.meaning}, such as {plain}/{number.example}")
    return plain, {number.keyword: value}


def steps_between_averages(name: str) -> int:
    """Return the steps from one average of the parameters to the next; 1 if ranks communicate in every step."""
    plain, number = parse_strategy(name)
    return int(number.get(EVERY.keyword, EVERY.example)) if STRATEGY_INFOS[plain].number is EVERY else 1
