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
    "vocabulary": "There are so many different tokens.",
    "d_model": "The model has so many numbers for a token.",
    "heads": "Each layer has so many attention heads.",
    "layers": "The model has so many layers.",
    "d_ff": "The MLP of a layer has so many numbers for a token.",
    "sequence_length": "The model sees so many tokens at once.",
    "strategy": f"Gradients are synchronised by this strategy: {', '.join(STRATEGY_NAMES)}; with buckets of 4 MiB: "
    "bucketed/4, ddp/4; with an average every 8 steps: local_sgd/8.",
    "epochs": "Each sample is seen so often; without it as often as the task says.",
    "steps": "The run ends after so many steps, if not before.",
    "batch_size": "A rank takes so many samples in a step; without it the ranks share the task's batch.",
    "accumulate": "A rank computes its share of a batch in so many parts.",
    "clip_norm": "The global norm of the gradients is at most this; without it it may be any.",
    "warmup_steps": "The learning rate grows to the whole one over so many steps.",
    "lr_schedule": "After the warm-up the learning rate stays as it is (constant), or falls to 0 at the last step "
    "(cosine).",
    "amp": "Forward passes compute in this dtype (bfloat16) what loses little by it; parameters keep their own.",
    "compile": "The model is compiled by torch.compile, which needs a C++ compiler.",
    "seed": "Data, weights and the order of the samples are drawn from this seed.",
    "broadcast": "All ranks begin with rank 0's weights; without it all must have the same.",
    "keep": "So many checkpoints are kept.",
    "log_every": "So many steps lie between two lines of the log, 0: there are none; on stderr one that follows "
    "another within a second may be left out.",
    "eval_every": "So many steps lie between two evaluations on held-out data, 0: only the trained model is evaluated.",
    "tensorboard": "What is logged is written for TensorBoard, too, to tensorboard in --output.",
    "check_every": "So many steps lie between two checks for drift, 0: it is never checked; without it 100, and never "
    "with the strategy none.",
    "on_nan": f"When a loss is not finite, the run does this: {', '.join(ON_NAN)} (the step).",
    "profile": "A time line of a few steps is written to this file, for ui.perfetto.dev.",
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
        help=f"This task is trained: {', '.join(TASK_NAMES)}, or MODULE:FUNCTION of your own.",
    )


def refuse_recording() -> None:
    """Raise UsageError if `ringsim trace` records a command that trains with several strategies in turn."""
    if os.environ.get("TORCHELASTIC_RUN_ID") == RECORDING_ID:
        raise click.UsageError(
            "it trains several times, and ringsim trace records one training: "
            "record -m trainers --strategy NAME, or run it without ringsim trace"
        )
