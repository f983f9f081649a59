"""`Attack`: a module that draws cases, and the table of all attacks."""

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tests.fuzz.case import Case


def nothing_to_close() -> None:
    """Do nothing: the cases of an attack share nothing."""


@dataclass(frozen=True)
class Attack:
    """Where cases come from.

    draw_case: draws a case from a random generator, which may be hypothesis's.
    share: of the time, in relation to the shares of the others.
    is_shrunk: whether hypothesis looks for a simpler case that fails alike, which it cannot where time decides.
    close: ends what cases share, such as processes.
    """

    name: str
    draw_case: Callable[[random.Random], Case]
    share: float = 1.0
    is_shrunk: bool = True
    close: Callable[[], None] = nothing_to_close


class _Row(NamedTuple):
    share: float
    is_shrunk: bool = True


# Every attack, by the name of its module beside this one.
TABLE = {
    "mutants": _Row(1),
    "collectives": _Row(3),
    "deaths": _Row(3, is_shrunk=False),
    "files": _Row(1),
    "training": _Row(2, is_shrunk=False),
    "mismatches": _Row(1),
    "strategies": _Row(3),
}


def attacks(only: tuple[str, ...] = ()) -> list[Attack]:
    """Return those named, or all. Raises ValueError for a name that there is not."""
    for name in only:
        if name not in TABLE:
            raise ValueError(f"attack {name!r}: must be one of {', '.join(TABLE)}")
    return [_attack(name) for name in only or TABLE]


def _attack(name: str) -> Attack:
    """Its module is loaded now, since to import torch takes seconds."""
    module = importlib.import_module(f"tests.fuzz.{name}")
    close = getattr(module, "close", nothing_to_close)
    return Attack(name, module.draw_case, *TABLE[name], close)
