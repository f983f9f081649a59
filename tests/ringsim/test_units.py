"""Quantities as people write them."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim.units import format_rate, format_size, format_time, parse_rate, parse_size, parse_time
from tests.refusals import said_by

READ = {
    parse_size: {"1500": 1500, "64KiB": 65536, "64MB": 64 * 10**6, "1.5 GiB": 3 * 2**29, "0": 0, "2k": 2000, "7B": 7},
    parse_rate: {"1.25GB/s": 1.25e9, "10Gbit/s": 1.25e9, "100 MiB/s": 100 * 2**20, "8Mbps": 1e6},
    parse_time: {"10us": 10e-6, "1.5ms": 1.5e-3, "2 s": 2.0, "3ns": 3e-9, "0us": 0.0},
}


@pytest.mark.parametrize("parse", READ)
def test_quantities(parse: Callable[[str], float]) -> None:
    """Bytes with prefixes of 1000 and of 1024, bytes and bits per second, seconds and parts of them."""
    assert {text: parse(text) for text in READ[parse]} == READ[parse]


@given(st.floats(1e-9, 1e4))
def test_what_is_printed_can_be_read_again(value: float) -> None:
    """To the digits that are shown."""
    assert math.isclose(parse_time(format_time(value)), value, rel_tol=1e-3)
    assert math.isclose(parse_rate(format_rate(value * 1e6)), value * 1e6, rel_tol=1e-2)


@pytest.mark.parametrize("parse", READ)
@pytest.mark.parametrize("exponent", [10**20, -(10**20)])
def test_exponents_of_many_digits_are_refused(parse: Callable[[str], float], exponent: int) -> None:
    """They are beyond what a decimal number holds."""
    text = f"1e{exponent}{'us' if parse is parse_time else 'B'}"
    assert said_by(ValueError, parse, text).startswith(f"{text!r} is not a ")


def test_sizes_are_printed_in_powers_of_1024() -> None:
    """As in the names of what people allocate."""
    sizes = (0, 1500, 2**26, 3 * 2**29, 5 * 2**41)
    assert [format_size(size) for size in sizes] == ["0 B", "1.465 KiB", "64 MiB", "1.5 GiB", "10 TiB"]


def test_rates_are_printed_without_exponents() -> None:
    """Also where rounding makes a thousand of them, and above a terabyte a second."""
    rates = (0.571, 999.4, 999.9, 999.4e6, 999.97e6, 5e12)
    assert [format_rate(rate) for rate in rates] == ["0.571 B/s", "999 B/s", "1 kB/s", "999 MB/s", "1 GB/s", "5 TB/s"]
