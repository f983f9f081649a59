"""Annotations for the fields of a `Record`: numbers with bounds, quantities with units, text.

A parser converts a JSON or TOML value, or raises ValueError with the broken rule.
"""

import re
import sys
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

from msgspec import Meta

from ringsim.units import MAX_VALUE, parse_flops, parse_rate, parse_size, parse_time

Parser = Callable[[Any], Any]

MAX_RANKS = 2**17  # above, simulating one collective takes many minutes
MIN_S, MAX_S = 1e-12, 1e9  # below the resolution of any clock, and decades; sums and quotients stay finite
MAX_RATIO = 1e9  # how many times as slow something may be
MAX_COUNT = 2**20  # more hosts, NICs or cores are a typing error
MAX_BYTES = 2**40
_LARGEST = sys.float_info.max


class _ByParser(type):
    """The type of `By[...]`, which msgspec asks whether the parser's result is an instance."""

    parse: Parser

    def __instancecheck__(cls, value: object) -> bool:
        return True


if TYPE_CHECKING:
    from typing import Annotated as By
else:

    class By:
        """The annotation `By[kind, parser]`: a value of this kind, which the parser returns."""

        def __class_getitem__(cls, kind_and_parser: tuple[Any, Parser]) -> type:
            return _ByParser("By", (), {"parse": staticmethod(kind_and_parser[1])})


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number, and not true or false, ints in Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number of Python or NumPy, and not true or false."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole(low: int = 0, high: int = MAX_VALUE, unit: str = "") -> Meta:
    """Return the bounds of whole numbers. unit: for the message."""
    bounds = f" from {low} to {high}" if high < MAX_VALUE else f", at least {low}"
    return Meta(ge=low, le=high, description=f"must be a whole number{unit and f' of {unit}'}{bounds}")


def number(low: float = -_LARGEST, high: float = _LARGEST, unit: str = "a finite number") -> Meta:
    """Return the bounds of finite numbers."""
    at_least = f", at least {low:g}" if low > -_LARGEST else ""
    return Meta(ge=low, le=high, description=f"must be {unit}{at_least}")


def seconds(low: float = -MAX_S) -> Meta:
    """Return the bounds of times or moments in seconds."""
    return number(low, MAX_S, "seconds")


def one_of(*known: str) -> Meta:
    """Return the rule of text that is one of these."""
    return Meta(pattern=rf"^({'|'.join(map(re.escape, known))})\Z", extra={"known": known})


def rate(value: Any) -> float:
    """Return a rate in bytes per second, from text with a unit."""
    return _quantity(parse_rate, value, '"1.25GB/s" or "10Gbit/s"')


def time(value: Any) -> float:
    """Return a time in seconds, from text with a unit."""
    return _quantity(parse_time, value, '"10us" or "1.5ms"')


def _capacity(value: Any) -> int:
    return int(_quantity(parse_size, value, '"80GiB"'))


def _flops(value: Any) -> float:
    return _quantity(parse_flops, value, '"312TFLOP/s"')


def _quantity(parse: Callable[[str], float], value: Any, example: str) -> float:
    if not isinstance(value, str):
        raise ValueError(f"must be text with a unit, such as {example}")
    try:
        return parse(value)
    except ValueError as error:  # its message begins with the value, which is already named
        raise ValueError(str(error).removeprefix(repr(value)).removeprefix(":").strip()) from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be text of one line")
    return value


def _name(value: Any) -> str:
    if not _text(value):
        raise ValueError("must not be empty")
    return str(value)


def _described(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict | None):
        raise ValueError("must be an object")
    if value is not None and (not isinstance(name := value.get("name", ""), str) or not name.isprintable()):
        raise ValueError("must have a name that is text of one line")
    return value


Text = By[str, _text]
Described = By[dict[str, Any] | None, _described]  # JSON of a network or a resource
Name = By[str, _name]
Time = By[float, time]
Rate = By[float, rate]
Capacity = By[int, _capacity]
Flops = By[float, _flops]
Whole = Annotated[int, whole()]
Positive = Annotated[int, whole(1)]
NumRanks = Annotated[int, whole(1, MAX_RANKS)]
Rank = Annotated[int, whole(0, MAX_RANKS - 1)]
Count = Annotated[int, whole(1, MAX_COUNT)]
Size = Annotated[int, whole(1, MAX_BYTES, "bytes")]
Number = Annotated[float, number()]
Seconds = Annotated[float, seconds(0)]
Duration = Annotated[float, seconds(MIN_S)]
Moment = Annotated[float, seconds()]  # may be before 0
Ratio = Annotated[float, number(1 / MAX_RATIO, MAX_RATIO)]  # how many times as fast, or as many; above 0
Slowdown = Annotated[float, number(1, MAX_RATIO)]
Fraction = Annotated[float, number(0, MAX_RATIO)]  # may exceed 1
Share = Annotated[float, number(0, 1)]  # of a whole
AT_LEAST_ONE = Meta(min_length=1, description="must be a list with at least one entry")
