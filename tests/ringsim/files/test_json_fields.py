"""What is read from JSON must have a dataclass's fields."""

import math
from dataclasses import dataclass
from typing import Any

import pytest

from ringsim.files.json_fields import finite_or_none, is_number, is_whole, require_fields


@dataclass
class Point:
    """Somewhere."""

    x: int
    y: int = 0


def test_all_fields_and_no_others() -> None:
    """In any order; one that has a default too."""
    require_fields(Point, {"y": 1, "x": "whatever"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1, 2], "list: must be an object with a field for each quantity"),
        ({"y": 1, "z": 2}, "a field is missing or unknown: 'x'"),
        ({"x": 1}, "a field is missing or unknown: 'y'"),
        ({"x": 1, "y": 1, "z": 2}, "a field is missing or unknown: 'z'"),
    ],
)
def test_the_first_that_is_wrong_is_named(data: Any, message: str) -> None:
    """What is missing before what is unknown."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  all of the message is looked at
        require_fields(Point, data)
    assert str(caught.value) == message


def test_what_is_not_finite_becomes_none() -> None:
    """In objects and lists too, and nothing else changes."""
    value = {"rate": math.inf, "times": (1.0, math.nan), "name": "x", "count": 3}
    assert finite_or_none(value) == {"rate": None, "times": [1.0, None], "name": "x", "count": 3}


def test_true_is_no_number() -> None:
    """Though Python counts with it."""
    assert [is_whole(value) for value in (3, True, 3.0, "3")] == [True, False, False, False]
    assert [is_number(value) for value in (3, True, 3.0, "3")] == [True, False, True, False]
