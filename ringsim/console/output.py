"""What a command prints and which files it writes: `-` is stdout, and each file is named on stderr."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from ringsim.files import atomic_file

STDOUT = Path("-")

json_option = click.option(
    "--json", "as_json", is_flag=True, help="The result is one JSON object: in seconds, bytes and bytes per second."
)
wide_option = click.option("--wide", is_flag=True, help="The table may be wider than 80 columns and says more.")


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file for the block: stdout for `-`, else a new one, which replaces `path` when the block has ended.

    Says on stderr that it was written. Raises OSError, as `atomic_file` does, if it cannot be written.
    """
    if path == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with atomic_file(path) as file:
        yield file
    say_wrote(path)


def say_wrote(path: Path | str) -> None:
    """Names a file that was written; on stderr, so that stdout holds nothing but the result."""
    click.echo(f"wrote {path}", err=True)


def print_result(text: str, data: Mapping[str, Any], as_json: bool, *files: Path | None) -> None:
    """Print the result of a command, as text or as one JSON object.

    files: those that were written; where stdout is one of them, nothing else is printed there.

    Raises ValueError for a number that JSON does not have.
    """
    if STDOUT not in files:
        click.echo(json.dumps(data, allow_nan=False) if as_json else text)


def require_one_stdout(as_json: bool, *files: Path | None) -> None:
    """Raise UsageError if more than one thing is to be printed to stdout."""
    if as_json + sum(file == STDOUT for file in files) > 1:
        raise click.UsageError("only one of --json and the files named - can be printed to stdout")
