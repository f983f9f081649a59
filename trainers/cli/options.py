"""The options that several of our command lines have, with their checks; loads no torch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import click

from ringsim.console import INT, REAL, Name
from trainers.loop.config import AMP_DTYPES, LOG_EVERY
from trainers.loop.rate_schedule import LR_SCHEDULES
from trainers.strategy_names import check_strategy
from trainers.tasks import TASK_NAMES
from trainers.tasks.config import ModelConfig

MAX_RANKS = 1024
MAX_TIMEOUT_S = 86400
RESUME_COMMAND = "trainers.resume_command"  # in the `meta` of click's context
MODEL_SIZES = {
    "vocabulary": "There are so many different tokens.",
    "d_model": "The model has so many numbers for a token.",
    "heads": "Each layer has so many attention heads.",
    "layers": "The model has so many layers.",
    "d_ff": "The MLP of a layer has so many numbers for a token.",
    "sequence_length": "The model sees so many tokens at once.",
}

_Command = TypeVar("_Command", bound=Callable[..., Any])


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
    help="A rank waits so many seconds for a peer.",
)
seed_option = click.option(
    "--seed", type=INT, default=0, help="Data, weights and the order of the samples are drawn from this seed."
)
log_every_option = click.option(
    "--log-every",
    type=INT,
    default=LOG_EVERY,
    help="So many steps lie between two lines of the log, 0: there are none; on stderr one that follows another within "
    "a second may be left out.",
)
warmup_option = click.option(
    "--warmup-steps", type=INT, default=0, help="The learning rate grows to the whole one over so many steps."
)
schedule_option = click.option(
    "--lr-schedule",
    type=Name("name", LR_SCHEDULES),
    default="constant",
    help="After the warm-up the learning rate stays as it is (constant), or falls to 0 at the last step (cosine).",
)
amp_option = click.option(
    "--amp",
    type=Name("dtype", AMP_DTYPES),
    help="Forward passes compute in this dtype (bfloat16) what loses little by it; parameters keep their own.",
)
compile_option = click.option(
    "--compile", is_flag=True, help="The model is compiled by torch.compile, which needs a C++ compiler."
)
tensorboard_option = click.option(
    "--tensorboard", is_flag=True, help="What is logged is written for TensorBoard, too, to tensorboard in --output."
)


def task_option(default: str) -> Callable[[_Command], _Command]:
    """What is trained."""
    return click.option(
        "--task",
        type=Name("name", TASK_NAMES),
        default=default,
        help=f"This task is trained: {', '.join(TASK_NAMES)}, or MODULE:FUNCTION of your own.",
    )


def batch_size_option(default: int | None = None) -> Callable[[_Command], _Command]:
    """Always of one rank; the command says what that is of all of them."""
    otherwise = "" if default else "; without it the ranks share the task's batch"
    return click.option(
        "--batch-size", type=INT, default=default, help=f"A rank takes so many samples in a step{otherwise}."
    )


def model_options(command: _Command) -> _Command:
    """One for each field of ModelConfig."""
    for size in reversed(fields(ModelConfig)):
        flag = f"--{size.name.replace('_', '-')}"
        command = click.option(flag, type=INT, default=size.default, help=MODEL_SIZES[size.name])(command)
    return command
