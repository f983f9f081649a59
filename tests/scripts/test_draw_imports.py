"""docs/architecture.md says how the code is."""

import re

import pytest

from draw_imports import HIDDEN, PACKAGES, PAGE, diagram, imports, part, without_short_cuts

ROOT = PAGE.parents[1]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_diagrams_are_those_of_the_code(package: str) -> None:
    """`python scripts/draw_imports.py` would change nothing."""
    page = PAGE.read_text()
    begin, end = page.index(part(package).begin), page.index(part(package).end)
    assert page[begin:end].split("\n", 1)[1].strip() == diagram(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_subpackage_has_a_paragraph(package: str) -> None:
    """It begins with its name, in the section of its package."""
    section = PAGE.read_text().partition(f"\n## {package}\n")[2].partition("\n## ")[0]
    described = re.findall(r"^- \*\*`(\w+)`\*\*", section, re.MULTILINE)
    assert sorted(described) == sorted(set(imports(package)) - set(HIDDEN))


def test_the_files_it_names_exist() -> None:
    """And there are many of them."""
    named = re.findall(r"`((?:ringsim|collectives|trainers|docs)/[\w/.]+)`", PAGE.read_text())
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_short_cuts_are_left_out() -> None:
    """Of the arrows a -> b -> c and a -> c the last."""
    assert without_short_cuts({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
