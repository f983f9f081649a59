"""Quantities as people write them."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim.units import decimal_number, format_rate, format_size, format_time, parse_rate, parse_size, parse_time
from tests.refusals import refused

READ = {
    parse_size: {"1500": 1500, "64KiB": 65536, "64MB": 64 * 10**6, "1.5 GiB": 3 * 2**29, "0": 0, "2k": 2000, "7B": 7},
    parse_rate: {"1.25GB/s": 1.25e9, "10Gbit/s": 1.25e9, "100 MiB/s": 100 * 2**20, "8Mbps": 1e6},
    parse_time: {"10us": 10e-6, "1.5ms": 1.5e-3, "2 s": 2.0, "3ns": 3e-9, "0us": 0.0},
}


@pytest.mark.parametrize("parse", READ)
def test_quantities(parse: Callable[[str], float]) -> None:
    """Bytes with prefixes of 1000 and of 1024, bytes and bits per second, seconds and parts of them."""
    assert {text: parse(text) for text in READ[parse]} == READ[parse]


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_size, "12XB", "'12XB' is not a size: write bytes as 1500, 64KiB or 64MB"),
        (parse_size, "1.5", "'1.5' is 1.5 bytes: a size must be a whole number of bytes"),
        (parse_size, "", "'' is not a size: write bytes as 1500, 64KiB or 64MB"),
        (parse_size, "nan", "'nan' is not a size: write bytes as 1500, 64KiB or 64MB"),
        (parse_size, "1e400GB", "'1e400GB' is too large a number"),
        (parse_rate, "10", "'10' is not a rate: write it as 1.25GB/s or 10Gbit/s"),
        (parse_rate, "-1GB/s", "'-1GB/s': a rate must be greater than 0"),
        (parse_time, "-1us", "'-1us': a time must not be negative"),
        (decimal_number, "3,5", "'3,5' is not a number: write it as 12 or 1.5e-3"),
        (parse_time, "1 minute", "'1 minute' is not a time: write it as 10us, 1.5ms or 2s"),
    ],
)
def test_anything_else_is_refused(parse: Callable[[str], float], text: str, message: str) -> None:
    """The message repeats the text and says how to write it."""
    with refused(message):
        parse(text)


@given(st.floats(1e-9, 1e4))
def test_what_is_printed_can_be_read_again(value: float) -> None:
    """To the digits that are shown."""
    assert math.isclose(parse_time(format_time(value)), value, rel_tol=1e-3)
    assert math.isclose(parse_rate(format_rate(value * 1e6)), value * 1e6, rel_tol=1e-2)


def test_sizes_are_printed_in_powers_of_1024() -> None:
    """As in the names of what people allocate."""
    sizes = (0, 1500, 2**26, 3 * 2**29, 5 * 2**41)
    assert [format_size(size) for size in sizes] == ["0 B", "1.465 KiB", "64 MiB", "1.5 GiB", "10 TiB"]


def test_rates_are_printed_without_exponents() -> None:
    """Also where rounding makes a thousand of them, and above a terabyte a second."""
    rates = (0.571, 999.4, 999.9, 999.4e6, 999.97e6, 5e12)
    assert [format_rate(rate) for rate in rates] == ["0.571 B/s", "999 B/s", "1 kB/s", "999 MB/s", "1 GB/s", "5 TB/s"]
