"""The options that are fields of a config, and those that several command lines have; loads no torch."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from ringsim.console import FILE, INT, REAL, FloatRange, Name, TorchrunCommand
from trainers.loop.config import CHOICES, StepConfig
from trainers.strategies import STRATEGIES
from trainers.tasks import TASK_NAMES
from trainers.tasks.base import flag

MAX_RANKS = 1024
RESUME_COMMAND = "trainers.resume_command"  # in the `meta` of click's context

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
METAVARS = {"amp": "dtype"}  # of an option with names; name for the others
TYPES: dict[Any, Any] = {bool: bool, int: INT, int | None: INT, float | None: REAL, Path | None: FILE}

_Command = TypeVar("_Command", bound=Callable[..., Any])


class TrainersCommand(TorchrunCommand):
    """A command whose errors name options, where those of the library name parameters."""

    def refuse(self, message: str, command: str | None, exit_code: int = 2) -> NoReturn:
        super().refuse(naming_options(message), command, exit_code)


def naming_options(message: str) -> str:
    """Return a message of the library with the options of the command line in place of its parameters.

    >>> naming_options("`batch_size` 0: must be at least 1")
    '--batch-size 0: must be at least 1'
    """
    return re.sub(r"`(\w+)`", lambda name: flag(name[1]), message)


def config_options(config: type, *names: str) -> Callable[[_Command], _Command]:
    """Declare an option for each of these fields of a config, with its name, type and default, in this order."""
    known = {field.name: field for field in fields(config)}

    def declare(command: _Command) -> _Command:
        for name in reversed(names):
            field = known[name]
            kind = Name(METAVARS.get(name, "name"), NAMES[name]) if name in NAMES else TYPES[field.type]
            typed: dict[str, Any] = {"is_flag": True} if kind is bool else {"type": kind, "default": field.default}
            command = click.option(flag(name), help=HELP[name], **typed)(command)
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
