"""`Attack`: a module that draws cases, and the table of all attacks."""

import importlib.util
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType

from tests.fuzz.case import Case


@dataclass(frozen=True)
class Attack:
    """Where cases come from.

    cases: draws cases from a random generator.
    share: of the time, in relation to the shares of the others.
    close: ends what cases share, such as processes.
    """

    name: str
    cases: Callable[[random.Random], Iterator[Case]]
    share: float = 1.0
    close: Callable[[], None] = field(default=lambda: None)

    def draw(self, case_seed: int) -> Case:
        """The case that this number stands for."""
        return next(iter(self.cases(random.Random(case_seed))))


# Every attack: the module of this name beside this one, its share of the time, and whether it runs unless asked for.
TABLE: tuple[tuple[str, float, bool], ...] = (
    ("mutants", 1, True),
    ("collectives", 3, True),
    ("deaths", 3, True),
    ("files", 1, True),
    ("training", 2, True),
    ("mismatches", 1, True),
    ("strategies", 3, True),
)


def attacks(only: tuple[str, ...] = ()) -> list[Attack]:
    """Those named, or all that run by default. Raises ValueError for a name that there is not."""
    known = {name: share for name, share, _ in TABLE if importlib.util.find_spec(f"tests.fuzz.{name}")}
    for name in only:
        if name not in known:
            raise ValueError(f"attack {name!r}: must be one of {', '.join(known)}")
    wanted = only or tuple(name for name, _, on in TABLE if on and name in known)
    return [_attack(name, known[name]) for name in wanted]


def _attack(name: str, share: float) -> Attack:
    """Its module is loaded now, since to import torch takes seconds."""
    module = importlib.import_module(f"tests.fuzz.{name}")
    return Attack(name, module.cases, share, partial(_close, module))


def _close(module: ModuleType) -> None:
    getattr(module, "close", lambda: None)()
