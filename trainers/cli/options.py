"""The options of the command lines: fields of a config, options of a task, and --config files; loads no torch."""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from ringsim.console import FILE, INT, REAL, FloatRange, Name, TorchrunCommand
from ringsim.files import naming_place, parse_toml, read_text, refusal, toml_text, unknown_key
from trainers.loop.config import CHOICES, StepConfig
from trainers.strategies import STRATEGIES
from trainers.tasks import TASK_NAMES, TASKS, Task, require_option
from trainers.tasks.base import flag

MAX_RANKS = 1024
RESUME_COMMAND = "trainers.resume_command"  # in the `meta` of click's context
KINDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text"}
NOT_IN_FILES = ("config", "as_json", "resume", "settings")  # by the names of parameters
TASK_OPTIONS = "task-options"
_FILE = "trainers.config_file"  # in the `meta` of click's context: path and options of the task

# What --help says of the fields of TrainConfig that are options.
HELP = {
    "strategy": f"Strategy of gradient synchronisation: {', '.join(STRATEGIES)}; with buckets of 4 MiB: "
    "bucketed/4, ddp/4; with an average every 8 steps: local_sgd/8.",
    "epochs": "Number of epochs [default: the task's].",
    "steps": "Maximum number of steps.",
    "batch_size": "Samples per rank and step [default: the task's batch, shared by the ranks].",
    "accumulate": "Number of micro-batches per step, whose gradients are accumulated.",
    "clip_norm": "Clip gradients to this global norm [default: no clipping].",
    "warmup_steps": "Linear warm-up of the learning rate, in steps.",
    "lr_schedule": "Learning rate after the warm-up: constant, or cosine, which falls to 0 at the last step.",
    "amp": "Autocast dtype of the forward pass (bfloat16); parameters keep their dtype.",
    "compile": "Compile the model with torch.compile, which needs a C++ compiler.",
    "seed": "Seed of data, weights and the order of the samples.",
    "broadcast": "Broadcast rank 0's weights at the start; without it all ranks must have the same.",
    "output": "Write checkpoints, log.jsonl and result.json to this directory [default: runs/TASK].",
    "save_every": "Steps, or epochs (1epoch), between two checkpoints; the end of the run also writes one.",
    "keep": "Checkpoints to keep.",
    "log_every": "Steps between two lines of the log; 0 for none. A line on stderr may be left out if it follows "
    "another within a second.",
    "eval_every": "Steps between two evaluations on held-out data; 0 evaluates only the trained model.",
    "tensorboard": "Also write the log for TensorBoard, to tensorboard in --output.",
    "check_every": "Steps between two checks for drift; 0 for none [default: 100, and none with the strategy none].",
    "on_nan": f"Action when a loss is not finite: {', '.join(CHOICES['on_nan'])} (the step).",
    "profile": "Write a time line of a few steps to this file, for ui.perfetto.dev.",
}
NAMES = {"strategy": tuple(STRATEGIES), **CHOICES}
METAVARS = {"amp": "DTYPE", "save_every": "STEPS|Nepoch"}  # of options whose types do not say enough
TYPES: dict[Any, Any] = {
    bool: click.BOOL, int: INT, int | None: INT, int | str: click.STRING, float | None: REAL, Path | None: FILE,
    Path: click.Path(path_type=Path, file_okay=False),
}  # fmt: skip

_Command = TypeVar("_Command", bound=Callable[..., Any])


class TrainersCommand(TorchrunCommand):
    """A command whose errors name options instead of parameters."""

    def refuse(self, message: str, command: str | None, exit_code: int = 2) -> NoReturn:
        super().refuse(naming_options(message), command, exit_code)


def naming_options(message: str) -> str:
    """Replace the library's parameters in a message by options."""
    return re.sub(r"`(\w+)`", lambda name: flag(name[1]), message)


def config_options(config: type, *names: str) -> Callable[[_Command], _Command]:
    """Declare an option for each named field of a config, in order."""
    known = {field.name: field for field in fields(config)}

    def declare(command: _Command) -> _Command:
        for name in reversed(names):
            default = None if known[name].default is MISSING else known[name].default
            kind = Name("name", NAMES[name]) if name in NAMES else TYPES[known[name].type]
            how: dict[str, Any] = {"is_flag": kind is click.BOOL, "metavar": METAVARS.get(name)}
            command = click.option(flag(name), type=kind, default=default, help=HELP[name], **how)(command)
        return command

    return declare


rate_and_number_options = config_options(StepConfig, "warmup_steps", "lr_schedule", "amp", "compile", "seed")


timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=FloatRange(0, 86400, min_open=True),
    default=60.0,
    help="Seconds that a rank waits for a peer.",
)
task_option = click.option(
    "--task",
    type=Name("name", TASK_NAMES),
    default="lm",
    help=f"Task to train: {', '.join(TASK_NAMES)}, or your MODULE:FUNCTION.",
)


def task_options(task: str, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the task's options from the file and the command line, which takes precedence.

    settings: NAME=VALUE each. Raises ValueError and UsageError for wrong options, and for a user's task named only in
    the file.
    """
    context = click.get_current_context()
    path, of_file = context.meta.get(_FILE, ("", {}))
    with naming_place(path):
        if is_of_file(context, "task"):
            _refuse_to_run(task)
        options = _checked(task, of_file)
    own_flags = [flag for option in context.command.params for flag in option.opts if flag.startswith("--")]
    given: dict[str, Any] = {}
    for text in (*settings, *_unknown_options(context.args)):
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise ValueError(f"--set {text}: must be NAME=VALUE, such as d-model=64")
        if name in given:
            raise ValueError(f"{flag(name)} is given twice")
        given |= _checked(task, {name: value if task in TASKS else _as_it_reads(value)}, own_flags)
    return {**options, **given}


def _unknown_options(arguments: Sequence[str]) -> Iterator[str]:
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


def _checked(task: str, given: Any, others: Iterable[str] = ()) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{TASK_OPTIONS}: must be a table, [{TASK_OPTIONS}]")
    options: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if not name.isidentifier():
            raise ValueError(f"{key!r}: is not the name of a task's option")
        require_option(task, name, others)
        wanted = _type_of(task, name)
        rule = "a number, true, false or text" if wanted is None else KINDS[wanted]
        try:
            if not isinstance(value, int | float | str):
                raise ValueError
            options[name] = value if wanted is None else wanted(str(value))
        except ValueError:
            raise ValueError(f"{flag(name)} {value}: must be {rule}") from None
    return options


def _as_it_reads(value: str) -> Any:
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return read if isinstance(read, int | float | str) else value


def _type_of(task: str, name: str) -> type | None:
    made: Callable[..., Any] | None = TASKS.get(task)
    if made is None:
        return None
    parameters = inspect.signature(made).parameters
    others = (parameter for parameter in parameters.values() if parameter.kind is inspect.Parameter.VAR_KEYWORD)
    wanted = parameters.get(name) or next(others, None)
    return wanted.annotation if wanted else None


def all_options(name: str, task: Task, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a built-in task, with defaults; of a user's task the given ones."""
    made = TASKS.get(name)
    if made is None:
        return dict(given)
    defaults = {key: parameter.default for key, parameter in inspect.signature(made).parameters.items()}
    known = {**defaults, **task.config(), **given}
    return {option: known[option] for option in made.options}


def config_option(command: _Command) -> _Command:
    """Add --config; options on the command line take precedence over the file."""
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
    known, text = _in_files(context.command), read_text(path)
    with naming_place(path):
        data = parse_toml(text)
        context.meta[_FILE] = path, data.pop(TASK_OPTIONS, {})
        context.default_map = {}
        for name, value in data.items():
            if name not in known:
                raise unknown_key("", name, [*known, TASK_OPTIONS])
            context.default_map[str(known[name].name)] = _read_value(context, known[name], name, value)


def _in_files(command: click.Command) -> dict[str, click.Option]:
    options = (option for option in command.params if isinstance(option, click.Option))
    named = ((max(option.opts, key=len).removeprefix("--"), option) for option in options)
    return {flag: option for flag, option in named if option.name not in NOT_IN_FILES}


def _read_value(context: click.Context, option: click.Option, name: str, value: Any) -> str:
    if isinstance(value, dict | list):
        raise refusal(name, value, "must be a single value")
    try:
        option.type.convert(str(value), option, context)
    except click.BadParameter as error:
        raise refusal(name, value, error.message) from error
    return str(value)


def is_of_file(context: click.Context, name: str) -> bool:
    """Whether the parameter's value comes from the file."""
    return context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP


def task_of_run(path: Path, task: str | None) -> tuple[str, int, dict[str, Any]]:
    """Return name, seed and options of the task in a run's options file. Raises ValueError or OSError."""
    text = read_text(path)
    with naming_place(path):
        data = parse_toml(text)
        name, seed = data.get("task"), data.get("seed")
        if not isinstance(name, str) or not isinstance(seed, int):
            raise ValueError("has no task and seed: must be the file that a run wrote")
        if task is None:
            _refuse_to_run(name)
        elif task != name:
            raise ValueError(f"task {name!r}: --task {task} is another one")
        return name, seed, _checked(name, data.get(TASK_OPTIONS, {}))


def _refuse_to_run(task: str) -> None:
    if ":" in task:
        raise ValueError(f"task {task!r}: is Python code, which runs only if you name it: give --task {task}")


def as_toml(context: click.Context, of_task: Mapping[str, Any], **others: Any) -> str:
    """Return a command's options as a file for --config. others: values that replace them."""
    values = {**context.params, **others}
    table = {name: values[str(option.name)] for name, option in _in_files(context.command).items()}
    table[TASK_OPTIONS] = {name.replace("_", "-"): value for name, value in of_task.items()}
    first = "# The options of this run: to repeat it, give this file as --config, and another --output.\n"
    return first + toml_text(table)
