"""Types of command-line options that the three packages share: quantities with units, and files."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ringsim.console.output import STDOUT
from ringsim.files import file_to_replace
from ringsim.units import parse_rate, parse_size, parse_time


class Quantity(click.ParamType[Any]):
    """An option whose text is read by a parser that raises ValueError, such as those of `units`."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default that is a number already
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _PlainDigits(click.ParamType[Any]):
    """Refuses digits of other scripts, underscores and nan, which click's own types take."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and (not value.isascii() or "_" in value or "nan" in value.lower()):
            self.fail(f"{value!r} is not a number: write it with the digits 0 to 9", param, ctx)
        return super().convert(value, param, ctx)


class IntRange(_PlainDigits, click.IntRange):
    """click's, with the digits 0 to 9."""


class FloatRange(_PlainDigits, click.FloatRange):
    """click's, with the digits 0 to 9."""


class _Int(_PlainDigits, click.types.IntParamType):
    """click.INT, with the digits 0 to 9."""


class _Real(_PlainDigits, click.types.FloatParamType):
    """click.FLOAT, with the digits 0 to 9."""


class OutputFile(click.Path):
    """A file to be written: what is in its way is found before the work, not after it.

    suffixes: one of which it must have; any if there are none.
    stdout: whether it may be `-`, which is stdout; for what is text.
    """

    def __init__(self, suffixes: Sequence[str] = (), *, stdout: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=False)
        self._suffixes = suffixes
        self.stdout = stdout

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path == STDOUT:
            if not self.stdout:
                self.fail("a picture cannot be printed to stdout: give the name of a file", param, ctx)
            return path
        if self._suffixes and path.suffix.lower() not in self._suffixes:
            self.fail(f"{path}: must end in {', '.join(filter(None, self._suffixes))}", param, ctx)
        target = file_to_replace(path)
        if target is None:
            return path
        if not target.parent.is_dir():
            self.fail(f"{path}: there is no directory {target.parent}", param, ctx)
        if not os.access(target.parent, os.W_OK | os.X_OK):
            self.fail(f"{path}: the directory {target.parent} cannot be written to", param, ctx)
        return path


SIZE = Quantity("size", parse_size)
RATE = Quantity("rate", parse_rate)
TIME = Quantity("time", parse_time)
INT = _Int()
REAL = _Real()
FILE = click.Path(path_type=Path, dir_okay=False)
OUTPUT = OutputFile(stdout=True)
PICTURE = OutputFile((".png", ".pdf", ".svg", ""))
