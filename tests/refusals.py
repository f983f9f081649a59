"""Helpers that require a refusal in one line and in these words."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


def refusal_of(command: str | list[str]) -> str:
    """The one line that `ringsim` says on stderr, which must be all it says, with exit code 2."""
    from ringsim.cli import main  # ranks, which need `said_by` alone, do without

    result = CliRunner().invoke(main, command.split() if isinstance(command, str) else command)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    return result.stderr
