"""The fields of JSON: what is read has all of them, each a quantity of its kind; what is written is finite."""

import math
from collections.abc import Collection, Mapping, Sized
from dataclasses import fields
from typing import Any, TypeGuard

from ringsim.files.text_file import quoted
from ringsim.units import MAX_VALUE

MAX_RANKS = 2**17
MIN_S, MAX_S = 1e-12, 1e9  # less than any clock can tell, and decades: what is between can be added up and divided by


def require_fields(
    kind: type[Any], data: Any, optional: Collection[str] = (), keys: Mapping[str, str] | None = None
) -> None:
    """Raises ValueError, in one line, unless `data` is an object with every field of `kind` and nothing else.

    optional: fields that may be left out. keys: of those fields that have another name in files.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{type(data).__name__}: must be an object with a field for each quantity")
    names = [(keys or {}).get(field.name, field.name) for field in fields(kind)]
    wrong = [name for name in names if name not in data and name not in optional]
    wrong += [name for name in data if name not in names]
    if wrong:
        raise ValueError(f"a field is missing or unknown: {wrong[0]!r}")


def require_whole(name: str, value: object, low: int, high: int = MAX_VALUE) -> None:
    """Raises ValueError unless `value` is a whole number in these bounds."""
    if not is_whole(value) or not low <= value <= high:
        bounds = f"from {low} to {high}" if isinstance(value, int) and value > high else f"at least {low}"
        raise ValueError(f"{name} {quoted(value)}: must be a whole number, {bounds}")


def require_seconds(name: str, value: object, low: float = -MAX_S) -> None:
    """Raises ValueError unless `value` is a moment or a time of at least `low`, and no more than MAX_S."""
    if not is_number(value) or not low <= value <= MAX_S:
        at_least = f", at least {low:g}" if low > -MAX_S else ""
        raise ValueError(f"{name} {quoted(value)}: must be seconds{at_least}{_at_most(value)}")


def require_duration(name: str, value: object) -> None:
    """Raises ValueError unless `value` is what something took: more than no time, and no more than MAX_S."""
    if not is_number(value) or not MIN_S <= value <= MAX_S:
        at_least = f", at least {MIN_S:g}" if is_number(value) and 0 < value < MIN_S else ", greater than 0"
        raise ValueError(f"{name} {quoted(value)}: must be seconds{at_least}{_at_most(value)}")


def is_whole(value: object) -> TypeGuard[int]:
    """Returns whether a value of JSON or TOML is a whole number, which true and false are not, unlike in Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value of JSON or TOML is a number, which true and false are not, unlike in Python."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at_most(value: object) -> str:
    return f" and at most {MAX_S:g}" if is_number(value) and value > MAX_S else ""


def require_text(name: str, value: object) -> None:
    """Raises ValueError unless `value` is text of one line."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{name} {quoted(value)}: must be text of one line")


def require_name(name: str, value: object) -> None:
    """Raises ValueError unless `value` is text of one line that is not empty."""
    require_text(name, value)
    if not value:
        raise ValueError(f"{name} {quoted(value)}: must not be empty")


def require_object(name: str, value: object) -> None:
    """Raises ValueError unless `value` is an object of JSON."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} {quoted(value)}: must be an object")


def require_one_each(name: str, values: Sized, number: int, things: str) -> None:
    """Raises ValueError unless there are as many values as things, such as ranks."""
    if len(values) != number:
        raise ValueError(f"{len(values)} {name} for {number} {things}: one for each")


def require_times(name: str, times_s: Sized) -> None:
    """Raises ValueError unless there is at least one time."""
    if not len(times_s):
        raise ValueError(f"{name}: must hold at least one time")


def as_tuple(name: str, value: object) -> tuple[Any, ...]:
    """Returns a list of JSON as a tuple. Raises ValueError for anything else."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} {quoted(value)}: must be a list")
    return tuple(value)


def finite_or_none(value: Any) -> Any:
    """Returns `value` as JSON can hold it: None for a number that is not finite, also within objects and lists."""
    if isinstance(value, dict):
        return {key: finite_or_none(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
