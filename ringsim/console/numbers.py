"""Numbers in options: several, `2,4,8` or `8:2000:x2`, and shares, 10%.

A range is its first number times all powers of the factor below its last number, and that last number, whether it is
such a multiple or not: 8:40:x2 is 8, 16, 32, 40.
"""

from collections.abc import Callable

from ringsim.units import decimal_number, whole_number

MAX_NUMBERS = 1000  # of a sweep; more is a slip of the pen


def parse_numbers(text: str, parse: Callable[[str], int], factor: int) -> list[int]:
    """Returns the numbers in order, each once; `parse` reads one, and a range without `:xN` grows by `factor`.

    >>> parse_numbers("3,8:40", int, factor=2)
    [3, 8, 16, 32, 40]

    Raises ValueError for what `parse` refuses, numbers less than 1, ranges that go down, and too many numbers.
    """
    numbers = {number for part in text.split(",") for number in _parse_part(part.strip(), parse, factor)}
    if len(numbers) > MAX_NUMBERS:
        raise ValueError(f"{text!r}: {len(numbers)} numbers, more than {MAX_NUMBERS}")
    return sorted(numbers)


def _parse_part(text: str, parse: Callable[[str], int], factor: int) -> list[int]:
    first_text, *rest = text.split(":")
    first = parse(first_text)
    if first < 1:
        raise ValueError(f"{first_text!r}: must be at least 1")
    if not rest:
        return [first]
    last = parse(rest[0])
    if last < first or len(rest) > 2:
        raise ValueError(f"{text!r} is not a range: write it as FIRST:LAST or FIRST:LAST:x{factor}, the smaller first")
    return _range(first, last, _parse_factor(rest[1]) if rest[1:] else factor)


def _range(first: int, last: int, factor: int) -> list[int]:
    numbers = []
    while first < last:
        numbers.append(first)
        first *= factor
    return [*numbers, last]  # who asks for 8:2000 wants to know about 2000


def _parse_factor(text: str) -> int:
    factor = whole_number(text.removeprefix("x"))
    if factor is None or factor < 2:
        raise ValueError(f"{text!r} is not a factor: write it as x2 or x4")
    return factor


def parse_share(text: str) -> float:
    """A share, 1 being the whole. Raises ValueError for anything else, or a negative one."""
    digits = text.strip().removesuffix("%")
    try:
        value = decimal_number(digits) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{text!r} is not a share: write it as 10% or 0.1") from None
    if not 0 <= value < float("inf"):  # nor what is no number
        raise ValueError(f"{text!r}: a share must not be negative")
    if value > 1 and not text.strip().endswith("%"):  # 5 is rather meant as 5 % than as 500 %
        raise ValueError(f"{text!r}: a share above 1 must be written with a sign: {digits}%")
    return value
