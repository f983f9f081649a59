"""Option types that the three packages share, and the output of commands."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from math import isnan
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ringsim.files import atomic_file, file_to_replace, is_read_only
from ringsim.suggestions import nearest
from ringsim.units import decimal_number, parse_rate, parse_size, parse_time, whole_number

Known = Callable[[click.Context], Iterable[str]]


class Choice(click.Choice[Any]):
    """One of a few texts or enum values; the error suggests the nearest."""

    def __init__(self, choices: Iterable[Any]) -> None:
        super().__init__(list(choices))

    def normalize_choice(self, choice: Any, ctx: click.Context | None) -> str:
        return super().normalize_choice(choice.value if isinstance(choice, Enum) else choice, ctx)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        message = super().get_invalid_choice_message(value, ctx)
        meant = nearest(str(value), [self.normalize_choice(choice, ctx) for choice in self.choices])
        return f"{message} Did you mean {meant!r}?" if meant else message


class Name(click.ParamType[str]):
    """A name that the command itself checks, such as an algorithm's or a file's.

    known: names that the shell completes, or a function of the context. several: separated by commas.
    """

    def __init__(self, name: str, known: Known | Sequence[str], *, several: bool = False) -> None:
        self.name = name
        self._known = known
        self._several = several

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        known = self._known(ctx) if callable(self._known) else self._known
        before, comma, begun = incomplete.rpartition(",") if self._several else ("", "", incomplete)
        fitting = [CompletionItem(f"{before}{comma}{name}") for name in known if name.startswith(begun)]
        return fitting or [CompletionItem(incomplete, type="file")]


MAX_NUMBERS = 1000  # of a sweep; more is a slip of the pen


def parse_numbers(text: str, parse: Callable[[str], int], factor: int) -> list[int]:
    """Return the numbers in order, each once. parse: reads one number. factor: of a range without `:xN`.

    >>> parse_numbers("3,8:40", int, factor=2)
    [3, 8, 16, 32, 40]

    The last number of a range is included. Raises ValueError for text that `parse` refuses, numbers less than 1,
    descending ranges, and too many numbers.
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
    if rest[1:]:
        factor = whole_number(rest[1].removeprefix("x")) or 0
        if factor < 2:
            raise ValueError(f"{rest[1]!r} is not a factor: write it as x2 or x4")
    numbers = []
    while first < last:
        numbers.append(first)
        first *= factor
    return [*numbers, last]  # who asks for 8:2000 wants to know about 2000


def parse_share(text: str) -> float:
    """Return a share, where 1 is the whole. Raises ValueError for a negative share and other text."""
    digits = text.strip().removesuffix("%")
    try:
        value = decimal_number(digits) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{text!r} is not a share: write it as 10% or 0.1") from None
    if not 0 <= value < float("inf"):  # nor what is no number
        raise ValueError(f"{text!r}: a share must be finite and at least 0")
    if value > 1 and not text.strip().endswith("%"):  # 5 is rather meant as 5 % than as 500 %
        raise ValueError(f"{text!r}: a share above 1 must be written with a sign: {digits}%")
    return value


class Quantity(click.ParamType[Any]):
    """A value read by a parser that raises ValueError."""

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


class _NoNan(click.ParamType[Any]):
    """Refuse nan, which click's own types accept, even in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is not a number", param, ctx) if isnan(number) else number


class FloatRange(_NoNan, click.FloatRange):
    """click's, without nan."""


class _Real(_NoNan, click.types.FloatParamType):
    pass


STDOUT = Path("-")

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, in seconds, bytes and bytes per second."
)
wide_option = click.option("--wide", is_flag=True, help="Print more columns, which may need over 80 characters.")


def write_output(path: Path | None, lines: Iterable[str]) -> None:
    """Write text to stdout for `-`, else to a new file, which replaces `path` when complete and is named on stderr.

    None: write nothing. Raises OSError.
    """
    if path == STDOUT:
        sys.stdout.buffer.writelines(map(str.encode, lines))
        sys.stdout.buffer.flush()
    elif path is not None:
        with atomic_file(path) as file:
            file.writelines(map(str.encode, lines))
        say_wrote(path)


def say_wrote(path: Path | str) -> None:
    """Name a written file on stderr; stdout holds only the result."""
    click.echo(f"wrote {path}", err=True)


def print_result(text: str, data: Mapping[str, Any], as_json: bool, *files: Path | None) -> None:
    """Print a result, as text or as one JSON object, unless an output file is stdout.

    Raises ValueError for a number that JSON cannot represent.
    """
    if STDOUT not in files:
        click.echo(json.dumps(data, allow_nan=False) if as_json else text)


def require_one_stdout(as_json: bool, *files: Path | None) -> None:
    """Raise UsageError if several results are to be printed to stdout."""
    if as_json + sum(file == STDOUT for file in files) > 1:
        raise click.UsageError("only one of --json and the files named - can be printed to stdout")


class OutputFile(click.Path):
    """A file to be written; an unwritable file is refused before the work.

    suffixes: allowed; empty: any. stdout: whether `-` is allowed, for text.
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
        if is_read_only(target):
            self.fail(f"{path}: is read-only", param, ctx)
        if not os.access(target.parent, os.W_OK | os.X_OK):
            self.fail(f"{path}: the directory {target.parent} cannot be written to", param, ctx)
        return path


SIZE = Quantity("size", parse_size)
RATE = Quantity("rate", parse_rate)
TIME = Quantity("time", parse_time)
REAL = _Real()
FILE = click.Path(path_type=Path, dir_okay=False)
OUTPUT = OutputFile(stdout=True)
PICTURE = OutputFile((".png", ".pdf", ".svg", ""))
