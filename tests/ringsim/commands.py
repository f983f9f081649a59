"""Commands of ringsim by click's runner: their files, what they print, and the line in which they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ringsim.cli import main
from tests.refusals import refusal_of


def written(path: Path, text: str) -> Path:
    """The file, with this text."""
    path.write_text(text)
    return path


def invoke(*arguments: object) -> Result:
    """The result of a command, also of one that fails."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run(*arguments: object) -> Result:
    """The result of a command that succeeds."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


def printed(*arguments: object) -> str:
    """Return the output of a command that succeeds."""
    return run(*arguments).stdout


def as_json(*arguments: object) -> Any:
    """The object that it prints with --json, which has neither NaN nor infinities."""
    return json.loads(printed(*arguments, "--json"), parse_constant=pytest.fail)


def in_lines(text: str) -> str:
    """Return a JSON object with a line for each key, and numbers to 9 digits, to be compared with a snapshot."""
    data = json.loads(text, parse_float=lambda number: f"{float(number):.9g}", parse_constant=pytest.fail)
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in data.items())


def refused(*arguments: object) -> str:
    """The one line on stderr of a command that is called wrongly, with exit code 2; stdout is empty."""
    return refusal_of([str(argument) for argument in arguments])
