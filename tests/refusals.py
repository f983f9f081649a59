"""Helpers that require a refusal in one line and in these words."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

Errors = type[Exception] | tuple[type[Exception], ...]


@contextmanager
def refused(message: str, error: Errors = ValueError) -> Iterator[None]:
    """The block must raise this error with this message; one that ends in dots is only its beginning."""
    with pytest.raises(error) as caught:
        yield
    said = str(caught.value)
    if message.endswith("..."):
        assert said.startswith(message.removesuffix("..."))
    else:
        assert said == message
    assert "\n" not in said


def said_by(
    error: type[Exception] | tuple[type[Exception], ...],
    call: Callable[..., object],
    *arguments: object,
    **options: object,
) -> str:
    """Return the message of the error that the call must raise."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    return str(caught.value)


def refusal_of(command: str | list[str], main: click.Command | None = None) -> str:
    """The one line that `ringsim`, or another program, says on stderr, which must be all it says, with exit code 2."""
    if main is None:
        from ringsim.cli import main  # ranks, which need `said_by` alone, do without

    result = CliRunner().invoke(main, shlex.split(command) if isinstance(command, str) else command)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    return result.stderr


def refusals_in(file: Path, main: click.Command, **names: object) -> str:
    """Return the commands of a file, one a line, each with the line in which the program refuses it.

    names: what stands in the commands, and in what is said, for paths of a test.
    """
    told = ""
    for command in file.read_text().splitlines():
        said = refusal_of([word.format(**names) for word in shlex.split(command)], main)
        for name, value in names.items():
            said = said.replace(str(value), f"{{{name}}}")
        told += f"$ {main.name} {command}\n{said}"
    return told
