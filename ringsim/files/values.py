"""The kinds of single values in files: numbers with their bounds, quantities with their units, text.

A parser takes what JSON or TOML gives and returns the value. It raises ValueError with the rule that the value breaks,
to stand after `file: place = value: `.
"""

import math
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeGuard

from ringsim.suggestions import suggestion
from ringsim.units import MAX_VALUE, parse_rate, parse_time

Parser = Callable[[Any], Any]

MAX_RANKS = 2**17
MIN_S, MAX_S = 1e-12, 1e9  # less than any clock can tell, and decades: what is between can be added up and divided by
MAX_RATIO = 1e9  # how many times as slow something may be
MAX_COUNT = 2**20  # more hosts, NICs or cores than that are a slip of the finger
MAX_BYTES = 2**40


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value of JSON or TOML is a whole number, which true and false are not, unlike in Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of JSON or TOML is a number, which true and false are not, unlike in Python."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(low: int = 0, high: int = MAX_VALUE, unit: str = "") -> Parser:
    """Return the parser of whole numbers in these bounds; `unit` is what they count, for the message."""

    def parse(value: Any) -> int:
        if not is_whole(value) or not low <= value <= high:
            is_bounded = high < MAX_VALUE or (is_whole(value) and value > high)
            bounds = f" from {low} to {high}" if is_bounded else f", at least {low}"
            raise ValueError(f"must be a whole number{unit and f' of {unit}'}{bounds}")
        return int(value)

    return parse


def number(low: float = -math.inf, high: float = math.inf, unit: str = "a finite number") -> Parser:
    """Return the parser of finite numbers in these bounds."""

    def parse(value: Any) -> float:
        # A whole number may be larger than any float, for which math.isfinite has an error of its own.
        if not is_number(value) or not abs(value) <= sys.float_info.max or not low <= value <= high:
            at_least = f", at least {low:g}" if math.isfinite(low) else ""
            at_most = f" and at most {high:g}" if is_number(value) and value > high else ""
            raise ValueError(f"must be {unit}{at_least}{at_most}")
        return float(value)

    return parse


def seconds(low: float = -MAX_S) -> Parser:
    """Return the parser of times or moments as JSON has them: a number of seconds of at least `low`."""
    return number(low, MAX_S, "seconds")


def one_of(*values: str) -> Parser:
    """Return the parser of one of these texts."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in values:
            meant = suggestion(value, values) if isinstance(value, str) else ""
            raise ValueError(f"must be one of {', '.join(values)}{meant}")
        return value

    return parse


def rate(value: Any) -> float:
    """Return a rate in bytes per second, which TOML has with its unit."""
    return _quantity(parse_rate, value, '"1.25GB/s" or "10Gbit/s"')


def time(value: Any) -> float:
    """Return a time in seconds, which TOML has with its unit."""
    return _quantity(parse_time, value, '"10us" or "1.5ms"')


def _quantity(parse: Callable[[str], float], value: Any, example: str) -> float:
    if not isinstance(value, str):
        raise ValueError(f"must be text with a unit, such as {example}")
    try:
        return parse(value)
    except ValueError as error:  # its message begins with the value, which is named already
        raise ValueError(str(error).removeprefix(repr(value)).removeprefix(":").strip()) from None


def truth(value: Any) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def text(value: Any) -> str:
    """Return any text of one line."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be text of one line")
    return value


def any_text(value: Any) -> str:
    """Return any text, of several lines too."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def name(value: Any) -> str:
    """Return text of one line that is not empty."""
    if not text(value):
        raise ValueError("must not be empty")
    return str(value)


count = whole(1, MAX_COUNT)
size = whole(1, MAX_BYTES, "bytes")
ratio = number(1 / MAX_RATIO, MAX_RATIO)  # how many times as fast, or as many; above 0
slowdown = number(1, MAX_RATIO)  # how many times as slow
fraction = number(0, MAX_RATIO)  # may exceed 1
share = number(0, 1)  # of a whole

Name = Annotated[str, name]
Positive = Annotated[int, whole(1)]
Duration = Annotated[float, seconds(MIN_S)]
Moment = Annotated[float, seconds()]  # may be before 0
