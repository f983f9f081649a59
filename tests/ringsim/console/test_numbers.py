"""Tests of `ringsim.console.parameters`."""

from ringsim.console.parameters import parse_numbers, parse_share
from ringsim.units import parse_size

LISTS = {
    "8": [8],
    "8,2, 4,2": [2, 4, 8],
    "1KiB:20KiB": [1024, 4096, 16384, 20480],
    "1:9:x3": [1, 3, 9],
    "1:10:3": [1, 3, 9, 10],
    "5,4:8:x2": [4, 5, 8],
    "7:7": [7],
}


def test_lists_and_ranges() -> None:
    """Commas and ranges together give each number once, in order; the end of a range is always one of them."""
    assert {text: parse_numbers(text, parse_size, factor=4) for text in LISTS} == LISTS


def test_shares() -> None:
    """Above one only with a sign."""
    assert (parse_share("5%"), parse_share("0.05"), parse_share("150%")) == (0.05, 0.05, 1.5)
