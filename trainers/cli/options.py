"""The options that are fields of a config, and those that several command lines have; loads no torch."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ringsim.console import FILE, INT, REAL, Name
from ringsim.traces import RECORDING_ID
from trainers.loop.config import AMP_DTYPES, LR_SCHEDULES, ON_NAN, StepConfig, TrainConfig
from trainers.strategy_names import STRATEGY_NAMES, check_strategy
from trainers.tasks import TASK_NAMES
from trainers.tasks.base import ModelConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_RANKS = 1024
MAX_TIMEOUT_S = 86400
RESUME_COMMAND = "trainers.resume_command"  # in the `meta` of click's context

# What --help says of the fields of ModelConfig and TrainConfig that are options.
HELP = {
    "vocabulary": "Number of different tokens.",
    "d_model": "Width of the model: numbers per token.",
    "heads": "Number of attention heads per layer.",
    "layers": "Number of layers.",
    "d_ff": "Width of the MLP of a layer.",
    "sequence_length": "Context length, in tokens.",
    "strategy": f"Strategy of gradient synchronisation: {', '.join(STRATEGY_NAMES)}; with buckets of 4 MiB: "
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
    "keep": "Checkpoints to keep.",
    "log_every": "Steps between two lines of the log; 0 for none. A line on stderr may be left out if it follows "
    "another within a second.",
    "eval_every": "Steps between two evaluations on held-out data; 0 evaluates only the trained model.",
    "tensorboard": "Also write the log for TensorBoard, to tensorboard in --output.",
    "check_every": "Steps between two checks for drift; 0 for none [default: 100, and none with the strategy none].",
    "on_nan": f"Action when a loss is not finite: {', '.join(ON_NAN)} (the step).",
    "profile": "Write a time line of a few steps to this file, for ui.perfetto.dev.",
}
CHOICES = {
    "strategy": Name("name", STRATEGY_NAMES),
    "lr_schedule": Name("name", LR_SCHEDULES),
    "amp": Name("dtype", AMP_DTYPES),
    "on_nan": Name("name", ON_NAN),
}
TYPES: dict[Any, Any] = {int: INT, int | None: INT, float | None: REAL, Path | None: FILE}

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Config = TypeVar("_Config", bound="DataclassInstance")


def config_options(config: type, *names: str) -> Callable[[_Command], _Command]:
    """Declare an option for each of these fields of a config, with its name, type and default, in this order."""
    known = {field.name: field for field in fields(config)}

    def declare(command: _Command) -> _Command:
        for name in reversed(names):
            field = known[name]
            flag = f"--{name.replace('_', '-')}"
            if field.type is bool:
                command = click.option(flag, is_flag=True, help=HELP[name])(command)
            else:
                kind = CHOICES.get(name) or TYPES[field.type]
                command = click.option(flag, type=kind, default=field.default, help=HELP[name])(command)
        return command

    return declare


def config_of(config: type[_Config], given: dict[str, Any], **others: Any) -> _Config:
    """Make a config of those of its fields that are among the given options, and take them out of there."""
    names = {field.name for field in fields(config)} & given.keys()
    return config(**{name: given.pop(name) for name in names}, **others)


log_options = config_options(TrainConfig, "log_every", "tensorboard")
rate_and_number_options = config_options(StepConfig, "warmup_steps", "lr_schedule", "amp", "compile", "seed")
model_options = config_options(ModelConfig, *(field.name for field in fields(ModelConfig)))


def strategy_names(_: click.Context, option: click.Parameter, value: str | Sequence[str]) -> tuple[str, ...]:
    """Read strategies with commas between, from an option that may also be repeated."""
    names = tuple(name.strip() for part in ([value] if isinstance(value, str) else value) for name in part.split(","))
    for name in names:
        try:
            check_strategy(name)
        except ValueError as error:
            raise click.BadParameter(str(error), param=option) from error
    if len(set(names)) != len(names):
        raise click.BadParameter(f"{','.join(names)!r} names a strategy twice", param=option)
    return names


def _seconds(_: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value <= MAX_TIMEOUT_S or math.isnan(value):
        raise click.BadParameter(f"{value}: must be greater than 0 and at most {MAX_TIMEOUT_S}", param=option)
    return value


timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=REAL,
    callback=_seconds,
    default=60.0,
    help="Seconds that a rank waits for a peer.",
)


def task_option(default: str) -> Callable[[_Command], _Command]:
    """Declare which task is trained."""
    return click.option(
        "--task",
        type=Name("name", TASK_NAMES),
        default=default,
        help=f"Task to train: {', '.join(TASK_NAMES)}, or your MODULE:FUNCTION.",
    )


def refuse_recording() -> None:
    """Raise UsageError if `ringsim trace` records a command that trains with several strategies in turn."""
    if os.environ.get("TORCHELASTIC_RUN_ID") == RECORDING_ID:
        raise click.UsageError(
            "it trains several times, but ringsim trace records one training: "
            "record -m trainers --strategy NAME, or run it without ringsim trace"
        )
