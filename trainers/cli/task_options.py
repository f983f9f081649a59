"""The options of a task as the command line gives them: NAME=VALUE, or --NAME VALUE among ours."""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from ringsim.files import refusal
from trainers.tasks import TASKS, Task, require_option

KINDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text"}


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


def checked_options(task: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a file, as what `load_task` takes.

    Raises ValueError for a value of another type than the task's option has, and for an option that it does not have.
    """
    options: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if not name.isidentifier():
            raise ValueError(f"{key!r}: is no name of a task's option")
        require_option(task, name)
        wanted = _type_of(task, name)
        if not _may_be(value, wanted):
            rule = "a number, true, false or text" if wanted is None else KINDS[wanted]
            raise refusal(key, value, f": must be {rule}")
        options[name] = value
    return options


def _may_be(value: object, wanted: type | None) -> bool:
    """wanted: None if it is for a user's task, which may want anything."""
    if wanted is None:
        return isinstance(value, int | float | str)
    return isinstance(value, int | float if wanted is float else wanted) and not isinstance(value, bool)


def all_options(name: str, task: Task, given: Mapping[str, Any]) -> dict[str, Any]:
    """Of a task of ours, with those that were not given; of a user's only what was given."""
    made = TASKS.get(name)
    if made is None:
        return dict(given)
    defaults = {key: parameter.default for key, parameter in inspect.signature(made).parameters.items()}
    known = {**defaults, **task.config(), **given}
    return {option: known[option] for option in made.options}


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
    """Return the options of the command itself."""
    return [flag for option in context.command.params for flag in option.opts if flag.startswith("--")]
