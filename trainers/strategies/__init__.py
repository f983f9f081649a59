"""The table of the strategies of gradient synchronisation. Importing it loads no torch.

Reading order: plain, bucketed, ddp, zero, zero3, fsdp, local_sgd, power_sgd.

>>> from trainers import STRATEGIES
>>> "ring" in STRATEGIES
True
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ringsim.suggestions import suggestion
from ringsim.units import decimal_number, whole_number

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn

    from trainers.strategies.base import Strategy

MAX_NUMBER = 10**6
MakeStrategy = Callable[["nn.Module", "dist.ProcessGroup"], "Strategy"]


class Number(NamedTuple):
    """The number after a slash. keyword: the strategy's argument."""

    keyword: str
    meaning: str
    example: int
    is_whole: bool = False


BUCKET = Number("bucket_cap_mb", "the size of a bucket in MiB", 4)
EVERY = Number("every", "the number of steps from one average to the next", 8, is_whole=True)
RANK = Number("rank", "the rank of the products that are sent, a whole number", 4, is_whole=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInfo:
    """A row of the table; calling it makes the strategy for a model and a group.

    sync: the class or function, as MODULE.NAME in this package.
    wire: dtype on the wire; None: the gradients'. backend: of a new group; None: the given group.
    is_exact: equals training in one process, except for rounding.
    leaves_mean: each parameter's `grad` becomes the mean over all ranks.
    saves_vectors: the optimizer's state is saved as vectors, not by parameter.
    keeps_state: checkpoints hold each rank's state.
    """

    sync: str
    wire: str | None = None
    backend: str | None = None
    number: Number | None = None
    is_exact: bool = True
    leaves_mean: bool = True
    saves_vectors: bool = False
    keeps_state: bool = False

    def __call__(self, model: "nn.Module", group: "dist.ProcessGroup", **options: Any) -> "Strategy":
        """Make the strategy; collective. options: the number, by keyword."""
        module, _, sync = self.sync.partition(".")
        make: Callable[..., Strategy] = getattr(import_module(f"trainers.strategies.{module}"), sync)
        if self.wire:
            options["wire"] = getattr(import_module("torch"), self.wire)
        if self.backend:
            group = import_module("trainers.strategies.ddp").group_on_ring(group)
        return make(model, group, **options)


_BUCKETED = StrategyInfo(sync="bucketed.Bucketed", number=BUCKET)
_HOOK = StrategyInfo(sync="ddp.DdpHook", number=BUCKET)
_FSDP = StrategyInfo(sync="fsdp.Fsdp", leaves_mean=False)
_LOCAL = StrategyInfo(sync="local_sgd.LocalSgd", number=EVERY, is_exact=False, leaves_mean=False, keeps_state=True)

STRATEGIES = {
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
    "fsdp": _FSDP,
    "fsdp_backend_ring": replace(_FSDP, backend="ring"),
    "local_sgd": _LOCAL,
    "diloco": replace(_LOCAL, sync="local_sgd.diloco"),
    "powersgd": StrategyInfo(sync="power_sgd.PowerSgd", number=RANK, is_exact=False, keeps_state=True),
}


def strategy_info(name: str) -> StrategyInfo:
    """Return a strategy's row; the name may have a number. Raises ValueError for a wrong name."""
    return STRATEGIES[parse_strategy(name)[0]]


def make_strategy(name: str) -> MakeStrategy:
    """Return a function that makes a strategy such as "ddp/4". Raises ValueError for a wrong name."""
    plain, options = parse_strategy(name)
    return partial(STRATEGIES[plain], **options)


def parse_strategy(name: str) -> tuple[str, dict[str, Any]]:
    """Return the plain name, and the number by keyword. Raises ValueError for wrong ones.

    >>> parse_strategy("ddp/4")
    ('ddp', {'bucket_cap_mb': 4.0})
    """
    plain, slash, text = name.partition("/")
    if plain not in STRATEGIES:
        raise ValueError(f"{name!r} is not one of {', '.join(STRATEGIES)}{suggestion(plain, list(STRATEGIES))}")
    if not slash:
        return plain, {}
    number = STRATEGIES[plain].number
    if number is None:
        takers = ", ".join(name for name, info in STRATEGIES.items() if info.number)
        raise ValueError(f"{name!r}: {plain} takes no number; only {takers} do")
    try:
        value = (whole_number(text) or 0) if number.is_whole else decimal_number(text)
    except ValueError:
        value = 0
    if not 0 < value <= MAX_NUMBER:
        raise ValueError(f"{name!r}: after the slash must be {number.meaning}, such as {plain}/{number.example}")
    return plain, {number.keyword: value}


def steps_between_averages(name: str) -> int:
    """Return the steps between averages of the parameters; 1 if ranks communicate in every step."""
    plain, number = parse_strategy(name)
    return int(number.get(EVERY.keyword, EVERY.example)) if STRATEGIES[plain].number is EVERY else 1
