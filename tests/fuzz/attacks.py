"""`Attack`: a module that draws cases, and the table of all attacks."""

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass

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


# Every attack, by the name of its module beside this one: its share, and whether its cases are shrunk.
TABLE = {
    "mutants": (1, True),
    "collectives": (3, True),
    "deaths": (3, False),
    "files": (1, True),
    "training": (2, False),
    "mismatches": (1, True),
    "strategies": (3, True),
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
