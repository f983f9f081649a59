"""The options of a task as the command line gives them: NAME=VALUE, or --NAME VALUE among ours."""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click

from trainers.tasks import TASKS, require_option

KINDS: dict[type, str] = {int: "a whole number", float: "a number"}


def read_settings(task: str, texts: Iterable[str], others: Iterable[str] = ()) -> dict[str, Any]:
    """NAME=VALUE each, as what `load_task` takes.

    others: the options that are not the task's, one of which may have been meant.

    Values for our own tasks are of the type these ask for; for a user's, of that which they read as.

    Raises ValueError for anything else, for a name given twice, and for one that a task of ours does not have.
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise ValueError(f"--set {text}: must be NAME=VALUE, such as d-model=64")
        if name in settings:
            raise ValueError(f"{_flag(name)} is given twice")
        require_option(task, name, others)
        settings[name] = _converted(name, value, _type_of(task, name))
    return settings


def read_unknown(arguments: Sequence[str]) -> Iterator[str]:
    """Options that are none of ours, and so the task's, as NAME=VALUE. Raises UsageError for what is no option."""
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--") or argument == "--":
            raise click.UsageError(f"{argument}: is no option; those of the task are --NAME VALUE")
        name, equals, value = argument.removeprefix("--").partition("=")
        if not equals:
            value = next(rest, "--")
            if value.startswith("--"):
                raise click.UsageError(f"--{name}: is no option of ours, and as one of the task needs a value")
        yield f"{name}={value}"


def _type_of(task: str, name: str) -> type | None:
    """What a task of ours wants; None if it is a user's, or has no such option."""
    made: Callable[..., Any] | None = TASKS.get(task)
    if made is None:
        return None
    parameters = inspect.signature(made).parameters
    others = [parameter for parameter in parameters.values() if parameter.kind is inspect.Parameter.VAR_KEYWORD]
    wanted = parameters.get(name) or next(iter(others), None)
    return wanted.annotation if wanted else None


def _converted(name: str, value: str, wanted: type | None) -> Any:
    if wanted is None:
        return _as_it_reads(value)
    try:
        return wanted(value)
    except ValueError as error:
        raise ValueError(f"{_flag(name)} {value}: must be {KINDS[wanted]}") from error


def _as_it_reads(value: str) -> Any:
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return read if isinstance(read, int | float | str) else value


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def own_flags(context: click.Context) -> list[str]:
    """Returns the options of the command itself."""
    return [flag for option in context.command.params for flag in option.opts if flag.startswith("--")]
