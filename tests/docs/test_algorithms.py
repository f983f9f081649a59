"""The page of the algorithms has all of them, with the steps and bytes of their schedules."""

import math
import re
from functools import partial

import pytest

from ringsim.algorithms import ALGORITHMS
from ringsim.analysis import cost_of
from ringsim.registry import build
from ringsim.schedule import Collective
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/reference/algorithms.md").read_text()
ROW = re.compile(r"^\| (\w+) \| \[`(\w+)`\]\(#(\w+)\) \| (.+) \| (.+) \|(?: `(.+)`)? \|$", re.MULTILINE)
ROWS = {(Collective(row[0]), row[1]): row[2:] for row in ROW.findall(PAGE)}
RANKS = (8, 16, 32, 64)
RANKS_PER_HOST = 8  # of all these numbers of ranks


def value_of(formula: str, **letters: float) -> float:
    """Return the value of a formula such as `2m * (k + 1)`, in which a product needs no sign."""
    spelled = formula.replace("log2", "log")
    spelled = re.sub(r"(\d|\)|\b[a-z])\s*(?=\()", r"\1*", re.sub(r"(\d)\s*(?=[a-z])", r"\1*", spelled))
    return float(eval(spelled, {"__builtins__": {}, "log": math.log2}, letters))


def formulas_of(cell: str) -> list[str]:
    """Return the formulas of a cell: of one host and of several, if they differ."""
    return re.findall("`(.+?)`", cell)


def test_the_page_has_every_algorithm() -> None:
    """A row for each collective that has it, which links its entry."""
    assert ROWS.keys() == ALGORITHMS.keys()
    assert {name for _, name in ALGORITHMS} == set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE))
    assert all(name == anchor for (_, name), (anchor, *_) in ROWS.items())


@pytest.mark.parametrize("key", ROWS, ids=lambda key: f"{key[0].value}-{key[1]}")
def test_steps_and_bytes_are_those_of_the_schedule(key: tuple[Collective, str]) -> None:
    """On one host and on several; what is at most so much is so much but for a sixth."""
    _, steps, sent, segments = ROWS[key]
    for num_ranks in RANKS:
        hosts = num_ranks // RANKS_PER_HOST
        value = partial(value_of, n=num_ranks, d=math.log2(num_ranks), m=RANKS_PER_HOST, h=hosts)
        counted = cost_of(build(*key, num_ranks))
        k = value(segments) if segments else math.nan
        assert counted.schedule.num_steps == value(formulas_of(steps)[0 if hosts == 1 else -1], k=k)
        (most,) = [value(formula) for formula in formulas_of(sent)]
        least = most * 5 / 6 if sent.startswith("at most") else most
        assert least - 1e-9 <= counted.sent <= most + 1e-9
