"""`--config`: the options of a command from a TOML file, and the file that a run leaves with its own."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ringsim.console import FILE
from ringsim.files import Key, Table, naming_place, parse_toml, read_text
from trainers.cli.task_options import checked_options
from trainers.tasks import Task

NOT_IN_FILES = ("config", "as_json", "resume", "settings")  # by the names of parameters
TASK_OPTIONS = "task-options"
_FILE = "trainers.config_file"  # in the `meta` of click's context: path and options of the task

_Command = TypeVar("_Command", bound=Callable[..., Any])


def config_option(command: _Command) -> _Command:
    """The option; those on the command line win over the file's."""
    return click.option(
        "--config",
        type=FILE,
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="Options that are not given have the values of this TOML file, such as the run.toml of another run.",
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


def task_options_of_file(context: click.Context, task: str) -> dict[str, Any]:
    """The options of the task that the file has. Raises ValueError for one that this task does not have, or take."""
    path, options = context.meta.get(_FILE, ("", {}))
    with naming_place(path):
        return checked_options(task, options)


def task_of_run(path: Path, task: str | None) -> tuple[str, int, dict[str, Any]]:
    """Its name, seed and options, in the file that a run has left; those of `task`, if that is given.

    Raises ValueError if there is no such file, and no task is given, and for what a file of a run does not have.
    """
    if not path.exists():
        if task is None:
            raise ValueError(f"{path}: is not there, so give the task of the checkpoint: --task NAME, and its options")
        return task, 0, {}
    text = read_text(path)
    with naming_place(path):
        data = parse_toml(text)
        name, seed, options = data.get("task"), data.get("seed"), data.get(TASK_OPTIONS, {})
        if not isinstance(name, str) or not isinstance(seed, int):
            raise ValueError("has no task and seed: must be the file that a run has left")
        if task is not None and task != name:
            return task, seed, {}
        return name, seed, checked_options(name, _table_of_task(options))


def require_task(path: Path, config: Mapping[str, Any], task: Task, given: Mapping[str, Any]) -> None:
    """Raise ValueError if a checkpoint with this config is of another task, but for the options that are `given`."""
    saved, now = config.get("task"), task.config()
    if not isinstance(saved, dict):
        raise ValueError(f"checkpoint {path}: is of no training session: evaluate takes those of trainers train")
    may_differ = {*given, "learning_rate", *(["data_sha256"] if "data" in given else [])}
    differing = [
        f"{name} {saved.get(name)}, now {now.get(name)}"
        for name in {**saved, **now}
        if saved.get(name) != now.get(name) and name not in may_differ
    ]
    if differing:
        raise ValueError(f"checkpoint {path}: is of a task with {'; '.join(differing)}: give its options")


def is_of_file(context: click.Context, name: str) -> bool:
    """Whether the value of the parameter `name` is the file's."""
    return context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP


def as_toml(context: click.Context, task_options: Mapping[str, Any], **others: Any) -> str:
    """All options of a command in the form that `--config` reads. others: what differs from what was given."""
    values = {**context.params, **others}
    lines = ["# The options of this run: give --config this file, and another --output, to have it once more."]
    for flag, option in _in_files(context.command).items():
        value = values[str(option.name)]
        if value is not None:
            lines.append(f"{flag} = {_toml(value)}")
    if _has_task(context.command):
        lines += ["", f"[{TASK_OPTIONS}]"]
        lines += [f"{name.replace('_', '-')} = {_toml(value)}" for name, value in task_options.items()]
    return "\n".join([*lines, ""])


def _in_files(command: click.Command) -> dict[str, click.Option]:
    """The options that a file may have, by their flags without dashes."""
    options = (option for option in command.params if isinstance(option, click.Option))
    named = ((max(option.opts, key=len).removeprefix("--"), option) for option in options)
    return {flag: option for flag, option in named if option.name not in NOT_IN_FILES}


def _has_task(command: click.Command) -> bool:
    """Whether the options of a task stand beside those of the command."""
    return any(option.name == "task" for option in command.params)


def _reader_of(option: click.Option) -> Callable[[Any], Any]:
    kinds: tuple[type, ...]
    if option.is_flag:
        kinds, rule = (bool,), "true or false"
    elif isinstance(option.type, click.types.IntParamType):
        kinds, rule = (int,), "a whole number"
    elif isinstance(option.type, click.types.FloatParamType):
        kinds, rule = (int, float), "a number"
    elif option.type is click.STRING:
        kinds, rule = (str, int), "text or a whole number"  # such as --save-every
    else:
        kinds, rule = (str,), "text"

    def read(value: Any) -> Any:
        if not isinstance(value, kinds) or isinstance(value, bool) != (bool in kinds):
            raise ValueError(f": must be {rule}")
        return value

    return read


def _table_of_task(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f": must be a table, [{TASK_OPTIONS}]")
    return value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # the same escapes, but for that
