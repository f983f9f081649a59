"""`Case`: one thing that an attack tries, and helpers to write it down and to make it smaller."""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class Case(Protocol):
    """What an attack's `cases(random)` yields: a frozen dataclass.

    The first case of `cases(random)` is drawn from `random` alone, so that a seed stands for a case.
    """

    def describe(self) -> str:
        """A few lines that reproduce the case."""

    def run(self) -> None:
        """Raise AssertionError if there is a fault."""

    def smaller(self) -> "Iterator[Case]":
        """Simpler variants, which may or may not show the same fault; the simplest first."""


def expression(value: Any) -> str:
    """A dataclass, or a tuple of some, as a Python expression without the fields that have their default."""
    if isinstance(value, tuple):
        parts = [expression(each) for each in value]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if not is_dataclass(value):
        return repr(value)
    shown = [field for field in fields(value) if getattr(value, field.name) != _default(field)]
    return f"{type(value).__name__}({', '.join(f'{f.name}={expression(getattr(value, f.name))}' for f in shown)})"


def lines_to_reproduce(case: Any, *also: type) -> str:
    """Python that runs the case; `also`: other classes of its module that the expression names."""
    names = ", ".join(sorted({type(case).__name__, *(each.__name__ for each in also)}))
    return f"from {type(case).__module__} import {names}\n{expression(case)}.run()"


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def with_a_default(value: T) -> Iterator[T]:
    """Variants of a dataclass with one field as it is by default."""
    for field in fields(value):  # type: ignore[arg-type]
        default = _default(field)
        if default is not MISSING and getattr(value, field.name) != default:
            yield replace(value, **{field.name: default})  # type: ignore[type-var]


def shorter(values: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """The sequence without its first or second half, then without one of its values."""
    half = len(values) // 2
    if half:
        yield tuple(values[half:])
        yield tuple(values[:half])
    if len(values) > 2:
        for index in range(len(values)):
            yield (*values[:index], *values[index + 1 :])


def with_one_replaced(values: Sequence[T], variants: "Any") -> Iterator[tuple[T, ...]]:
    """The sequence with one value exchanged for one of its `variants(value)`."""
    for index, value in enumerate(values):
        for variant in variants(value):
            yield (*values[:index], variant, *values[index + 1 :])
