"""The kinds of values in a TOML file of this project: what each may be, and how it is read.

Every function takes what TOML gives. It raises ValueError with the rule that the value breaks, to stand after
`file: place = value`.
"""

from collections.abc import Callable
from typing import Any

from ringsim.files.json_fields import is_number, is_whole
from ringsim.units import parse_rate, parse_time

Parser = Callable[[Any], Any]

MAX_RATIO = 1e9  # how many times as slow something may be
MAX_COUNT = 2**20  # more hosts, NICs or cores than that are a slip of the finger
MAX_BYTES = 2**40
_NAME_RULE = ": a name must be text of letters, digits, _ and - only"


def rate(value: Any) -> float:
    """Returns a rate in bytes per second."""
    return _quantity(parse_rate, value, '"1.25GB/s" or "10Gbit/s"')


def time(value: Any) -> float:
    """Returns a time in seconds."""
    return _quantity(parse_time, value, '"10us" or "1.5ms"')


def _quantity(parse: Callable[[str], float], value: Any, example: str) -> float:
    if not isinstance(value, str):
        raise ValueError(f": must be text with a unit, such as {example}")
    try:
        return parse(value)
    except ValueError as error:  # its message begins with the value, which is named already
        raise ValueError(str(error).removeprefix(repr(value))) from None


def count(value: Any) -> int:
    """Returns a whole number from 1."""
    if not is_whole(value) or not 1 <= value <= MAX_COUNT:
        raise ValueError(f": must be a whole number from 1 to {MAX_COUNT}")
    return int(value)


def size(value: Any) -> int:
    """Returns a number of bytes, from 1."""
    if not is_whole(value) or not 1 <= value <= MAX_BYTES:
        raise ValueError(f": must be a whole number of bytes from 1 to {MAX_BYTES}")
    return int(value)


def rank(value: Any) -> int:
    """Returns a whole number from 0, as a seed is too."""
    if not is_whole(value) or not 0 <= value <= 2**62:
        raise ValueError(": must be a whole number, 0 or more")
    return int(value)


def ranks(value: Any) -> tuple[int, ...]:
    """Returns a list of ranks, none of them twice."""
    if not isinstance(value, list) or not all(is_whole(item) and 0 <= item < MAX_COUNT for item in value):
        raise ValueError(": must be a list of ranks, such as [0, 1]")
    if not value:
        raise ValueError(": a host must have ranks")
    if len(set(value)) != len(value):
        raise ValueError(": no rank may be listed twice")
    return tuple(value)


def sizes(value: Any) -> tuple[int, ...]:
    """Returns a list of sizes in bytes."""
    if not isinstance(value, list) or not all(is_whole(item) and item > 0 for item in value):
        raise ValueError(": must be a list of sizes in bytes, such as [1024, 4096]")
    return tuple(value)


def texts(value: Any) -> tuple[str, ...]:
    """Returns a list of texts."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(': must be a list of texts, such as ["a", "b"]')
    return tuple(value)


def positive(value: Any) -> float:
    """Returns a finite number above 0."""
    if not _is_bounded(value) or not value >= 1 / MAX_RATIO:
        raise ValueError(": must be a finite number greater than 0")
    return float(value)


def at_least_one(value: Any) -> float:
    """Returns a ratio of at least 1: how many times as slow something is."""
    if not _is_bounded(value) or value < 1:
        raise ValueError(": must be a finite number, 1 or more")
    return float(value)


def fraction(value: Any) -> float:
    """Returns a finite number that is not negative; it may exceed 1."""
    if not _is_bounded(value) or value < 0:
        raise ValueError(": must be a finite number, 0 or more")
    return float(value)


def is_half_duplex(value: Any) -> bool:
    """Returns whether a duplex, full or half, is half."""
    if value not in ("full", "half"):
        raise ValueError(': must be "full" or "half"')
    return bool(value == "half")


def text(value: Any) -> str:
    """Returns any text."""
    if not isinstance(value, str):
        raise ValueError(": must be text")
    return value


def name(value: Any) -> str:
    """Returns a name that resources can be named after, hence without dots, arrows and blanks."""
    if not isinstance(value, str) or not value.replace("_", "").replace("-", "").isalnum():
        raise ValueError(_NAME_RULE)
    return value


def two_names(value: Any) -> tuple[str, str]:
    """Returns the names of the two ends of a link."""
    if not isinstance(value, list) or len(value) != 2 or value[0] == value[1]:
        raise ValueError(': must be two different names, such as ["a", "switch1"]')
    return name(value[0]), name(value[1])


def _is_bounded(value: Any) -> bool:
    return is_number(value) and abs(value) <= MAX_RATIO
