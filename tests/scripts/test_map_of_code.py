"""docs/architecture.md says how the code is."""

import re

from map_of_code import PAGE, ROOT, parts, without_short_cuts


def test_the_map_is_that_of_the_code() -> None:
    """`python scripts/map_of_code.py` would change nothing."""
    for generated, text in parts():
        assert generated.read(PAGE) == text, generated.begin


def test_the_files_it_names_exist() -> None:
    """And there are many of them."""
    named = re.findall(r"`((?:ringsim|collectives|trainers|docs)/[\w/.]+)`", PAGE.read_text())
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_short_cuts_are_left_out() -> None:
    """Of the arrows a -> b -> c and a -> c the last."""
    assert without_short_cuts({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
