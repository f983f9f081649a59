"""Options that are not declared one by one: a task's, as NAME=VALUE or --NAME VALUE, and all those of a --config file.

A run leaves such a file with its own options in the output directory.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ringsim.console import FILE
from ringsim.files import Key, Table, naming_place, parse_toml, read_text, refusal
from trainers.tasks import TASKS, Task, require_option

KINDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text"}
NOT_IN_FILES = ("config", "as_json", "resume", "settings")  # by the names of parameters
TASK_OPTIONS = "task-options"
_FILE = "trainers.config_file"  # in the `meta` of click's context: path and options of the task

_Command = TypeVar("_Command", bound=Callable[..., Any])


def given_settings(task: str, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the options of the task on the present command line, as `load_task` takes them.

    settings: NAME=VALUE each, as --set gives them. Raises ValueError and UsageError for what is no option of the task.
    """
    context = click.get_current_context()
    own_flags = [flag for option in context.command.params for flag in option.opts if flag.startswith("--")]
    return read_settings(task, [*settings, *_unknown_options(context.args)], own_flags)


def read_settings(task: str, texts: Iterable[str], others: Iterable[str] = ()) -> dict[str, Any]:
    """Return what NAME=VALUE each says, as `load_task` takes it.

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


def _unknown_options(arguments: Sequence[str]) -> Iterator[str]:
    """Yield options that are none of ours, and so the task's, as NAME=VALUE."""
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--") or argument == "--":
            raise click.UsageError(f"{argument}: is not an option; options of the task are --NAME VALUE")
        name, equals, value = argument.removeprefix("--").partition("=")
        if not equals:
            value = next(rest, "--")
            if value.startswith("--"):
                raise click.UsageError(f"--{name}: is not an option of trainers; an option of the task needs a value")
        yield f"{name}={value}"


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


def _type_of(task: str, name: str) -> type | None:
    """Return the type of a task's option; None if the task is a user's, which may want anything."""
    made: Callable[..., Any] | None = TASKS.get(task)
    if made is None:
        return None
    parameters = inspect.signature(made).parameters
    others = (parameter for parameter in parameters.values() if parameter.kind is inspect.Parameter.VAR_KEYWORD)
    wanted = parameters.get(name) or next(others, None)
    return wanted.annotation if wanted else None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def all_options(name: str, task: Task, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a task of ours, with those that were not given; of a user's only what was given."""
    made = TASKS.get(name)
    if made is None:
        return dict(given)
    defaults = {key: parameter.default for key, parameter in inspect.signature(made).parameters.items()}
    known = {**defaults, **task.config(), **given}
    return {option: known[option] for option in made.options}


def config_option(command: _Command) -> _Command:
    """Add --config, whose options give way to those on the command line."""
    return click.option(
        "--config",
        type=FILE,
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="TOML file of values for options that are not given, such as the run.toml of another run.",
    )(command)


def _read_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None or context.resilient_parsing:
        return
    keys = {flag: Key(str(option.name), _reader_of(option)) for flag, option in _in_files(context.command).items()}
    if _has_task(context.command):
        keys[TASK_OPTIONS] = Key(TASK_OPTIONS, _table_of_task)
    text = read_text(path)
    with naming_place(path):
        fields = Table(keys).read(parse_toml(text), "")
    context.meta[_FILE] = path, fields.pop(TASK_OPTIONS, {})
    context.default_map = fields


def _in_files(command: click.Command) -> dict[str, click.Option]:
    """Return the options that a file may have, by their flags without dashes."""
    options = (option for option in command.params if isinstance(option, click.Option))
    named = ((max(option.opts, key=len).removeprefix("--"), option) for option in options)
    return {flag: option for flag, option in named if option.name not in NOT_IN_FILES}


def _has_task(command: click.Command) -> bool:
    """Return whether the command has the options of a task besides its own."""
    return any(option.name == "task" for option in command.params)


def _reader_of(option: click.Option) -> Callable[[Any], Any]:
    kinds: tuple[type, ...] = (str,)
    rule = "text"
    if option.is_flag:
        kinds, rule = (bool,), "true or false"
    elif isinstance(option.type, click.types.IntParamType):
        kinds, rule = (int,), "a whole number"
    elif isinstance(option.type, click.types.FloatParamType):
        kinds, rule = (int, float), "a number"
    elif option.type is click.STRING:
        kinds, rule = (str, int), "text or a whole number"  # such as --save-every

    def read(value: Any) -> Any:
        if not isinstance(value, kinds) or isinstance(value, bool) != (bool in kinds):
            raise ValueError(f": must be {rule}")
        return value

    return read


def _table_of_task(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f": must be a table, [{TASK_OPTIONS}]")
    return value


def is_of_file(context: click.Context, name: str) -> bool:
    """Return whether the value of the parameter `name` is the file's."""
    return context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP


def task_options_of_file(context: click.Context, task: str) -> dict[str, Any]:
    """Return the options of the task that the file has. Raises ValueError for one that this task does not take.

    Likewise for a task of a user's that only the file names.
    """
    path, options = context.meta.get(_FILE, ("", {}))
    with naming_place(path):
        if is_of_file(context, "task"):
            _refuse_to_run(task)
        return _checked_options(task, options)


def task_of_run(path: Path, task: str | None) -> tuple[str, int, dict[str, Any]]:
    """Return name, seed and options of the task in the file that a run has left.

    Raises ValueError if there is no such file, if `task` is another one, for a user's task that only the file names,
    and for what a file of a run does not have.
    """
    if not path.exists():
        raise ValueError(f"{path}: does not exist: a run writes it next to its checkpoints")
    text = read_text(path)
    with naming_place(path):
        data = parse_toml(text)
        name, seed, options = data.get("task"), data.get("seed"), data.get(TASK_OPTIONS, {})
        if not isinstance(name, str) or not isinstance(seed, int):
            raise ValueError("has no task and seed: must be the file that a run wrote")
        if task is None:
            _refuse_to_run(name)
        elif task != name:
            raise ValueError(f"task {name!r}: --task {task} is another one")
        return name, seed, _checked_options(name, _table_of_task(options))


def _refuse_to_run(task: str) -> None:
    """Raise ValueError for a user's task: whoever made a file that names it would run any code by that."""
    if ":" in task:
        raise ValueError(f"task {task!r}: is Python code, which runs only if you name it: give --task {task}")


def _checked_options(task: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a file, as `load_task` takes them. Raises ValueError for another type or a wrong name."""
    options: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if not name.isidentifier():
            raise ValueError(f"{key!r}: is not the name of a task's option")
        require_option(task, name)
        wanted = _type_of(task, name)
        if not _may_be(value, wanted):
            rule = "a number, true, false or text" if wanted is None else KINDS[wanted]
            raise refusal(key, value, f": must be {rule}")
        options[name] = value
    return options


def _may_be(value: object, wanted: type | None) -> bool:
    """Return whether a value of a file is of the wanted type; None if it is for a user's task, which may want any."""
    if wanted is None:
        return isinstance(value, int | float | str)
    return isinstance(value, int | float if wanted is float else wanted) and not isinstance(value, bool)


def as_toml(context: click.Context, task_options: Mapping[str, Any], **others: Any) -> str:
    """Return all options of a command as `--config` reads them. others: what differs from what was given."""
    values = {**context.params, **others}
    lines = ["# The options of this run: to repeat it, give this file as --config, and another --output."]
    for flag, option in _in_files(context.command).items():
        value = values[str(option.name)]
        if value is not None:
            lines.append(f"{flag} = {_toml(value)}")
    if _has_task(context.command):
        lines += ["", f"[{TASK_OPTIONS}]"]
        lines += [f"{name.replace('_', '-')} = {_toml(value)}" for name, value in task_options.items()]
    return "\n".join([*lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # the same escapes, but for that
