"""The options that several of our command lines have, with their checks; loads no torch."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from trainers.tasks import TASK_NAMES
from trainers.tasks.config import ModelConfig

MAX_RANKS = 1024
MAX_TIMEOUT_S = 86400

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _seconds(_: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value <= MAX_TIMEOUT_S or math.isnan(value):
        raise click.BadParameter(f"{value}: must be greater than 0 and at most {MAX_TIMEOUT_S}", param=option)
    return value


timeout_option = click.option(
    "--timeout", "timeout_s", type=float, callback=_seconds, default=60.0, help="Seconds to wait for a peer."
)
seed_option = click.option(
    "--seed", type=int, default=0, help="Of the data, the weights, and the order of the samples."
)


def task_option(default: str) -> Callable[[_Command], _Command]:
    """What is trained."""
    return click.option("--task", default=default, help=f"{', '.join(TASK_NAMES)}, or MODULE:FUNCTION of your own.")


def batch_size_option(default: int | None = None) -> Callable[[_Command], _Command]:
    """Always of one rank; the command says what that is of all of them."""
    otherwise = "" if default else "  [default: the task's batch, shared among the ranks]"
    return click.option("--batch-size", type=int, default=default, help=f"Samples per rank and step.{otherwise}")


def model_options(command: _Command) -> _Command:
    """One for each field of ModelConfig."""
    for size in reversed(fields(ModelConfig)):
        command = click.option(f"--{size.name.replace('_', '-')}", type=int, default=size.default)(command)
    return command
