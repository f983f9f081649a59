"""`trainers evaluate` and `trainers sample`: run a checkpoint's model in one process."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ringsim.console import FloatRange, IntRange, Name, examples, json_option, print_result
from trainers.checkpoints.output import OPTIONS_FILE, CheckpointFolder
from trainers.cli.options import task_of_run
from trainers.tasks import TASK_NAMES, load_task
from trainers.tasks.base import NUM_BYTE_VALUES, ModelConfig, evaluate, format_figures

if TYPE_CHECKING:
    from torch import nn

    from trainers.checkpoints.checkpoint import Checkpoint

MAX_TOKENS = 2**20
CHECKPOINT = click.Path(path_type=Path)


@click.command("evaluate", epilog=examples("trainers evaluate runs/lm/checkpoint-50.pt", "trainers evaluate runs/lm"))
@click.argument("checkpoint", type=CHECKPOINT)
@click.option(
    "--task",
    type=Name("name", TASK_NAMES),
    help=f"Task in the {OPTIONS_FILE} next to the checkpoint; required if it is Python code.",
)
@json_option
def evaluate_command(checkpoint: Path, task: str | None, as_json: bool) -> None:
    """Evaluate the model of a checkpoint, or of the newest in a directory, on its task's held-out data."""
    path = newest(checkpoint)
    name, seed, options = task_of_run(path.with_name(OPTIONS_FILE), task)
    loaded = load_task(name, seed, **options)
    from trainers.checkpoints.checkpoint import load_checkpoint  # noqa: PLC0415  loads torch

    read = load_checkpoint(path)
    saved, now = read.config.get("task"), loaded.config()
    if not isinstance(saved, dict) or {**saved, "learning_rate": 0} != {**now, "learning_rate": 0}:
        raise ValueError(f"checkpoint {path}: is of the task {saved}: must be that of {OPTIONS_FILE}, {now}")
    figures = evaluate(loaded, _filled(loaded.model(), path, read))
    text = f"{loaded.name} after {read.step} steps: {format_figures(figures) or 'no figures'}"
    print_result(text, {"task": now, "step": read.step, "evaluation": figures}, as_json)


@click.command("sample", epilog=examples("trainers sample runs/lm --prompt 'The import' --tokens 300 --seed 1"))
@click.argument("checkpoint", type=CHECKPOINT)
@click.option("--prompt", default="The ", help="Text that the model continues.")
@click.option("--tokens", type=IntRange(1, MAX_TOKENS), default=200, help="Number of bytes to sample.")
@click.option(
    "--temperature",
    type=FloatRange(0, 100, min_open=True),
    default=0.8,
    help="Sampling temperature; higher values give more varied text.",
)
@click.option("--seed", type=IntRange(0, 2**63 - 1), default=0, help="Random seed of the sampling.")
@json_option
def sample_command(checkpoint: Path, prompt: str, tokens: int, temperature: float, seed: int, as_json: bool) -> None:
    """Continue a text with the language model of a checkpoint, or of the newest in a directory."""
    path = newest(checkpoint)
    if not prompt:
        raise click.UsageError("--prompt '': must have at least one character")
    from trainers.checkpoints.checkpoint import load_checkpoint  # noqa: PLC0415  loads torch
    from trainers.tasks.lm import printable  # noqa: PLC0415
    from trainers.tasks.model import TinyTransformer, continue_text  # noqa: PLC0415

    read = load_checkpoint(path)
    config = _shape(path, read.config.get("task"))
    model = _filled(TinyTransformer(config), path, read)
    drawn = continue_text(model, config.sequence_length, prompt.encode(errors="replace"), tokens, seed, temperature)
    text = printable(drawn)
    print_result(prompt + text, {"prompt": prompt, "text": text, "step": read.step}, as_json)


def newest(path: Path) -> Path:
    """Return the file, or the newest checkpoint in the directory. Raises UsageError if there is none."""
    if not path.is_dir():
        return path
    if checkpoints := CheckpointFolder(path).newest_first():
        return checkpoints[0]
    raise click.UsageError(f"{path}: there is no checkpoint in this directory, such as checkpoint-50.pt")


def _shape(path: Path, task: Any) -> ModelConfig:
    names = ModelConfig.__dataclass_fields__
    if not isinstance(task, dict) or not all(isinstance(task.get(name), int) for name in names):
        name = task.get("task", "its own") if isinstance(task, dict) else "its own"
        raise click.UsageError(
            f"{path}: is of the task {name}, which does not produce text: sample needs one of the task lm"
        )
    if task["vocabulary"] < NUM_BYTE_VALUES:
        raise click.UsageError(f"{path}: its vocabulary is {task['vocabulary']}: for text it must be {NUM_BYTE_VALUES}")
    return ModelConfig(**{name: task[name] for name in names})


def _filled(model: "nn.Module", path: Path, checkpoint: "Checkpoint") -> "nn.Module":
    try:
        model.load_state_dict(checkpoint.model_state)
    except RuntimeError as error:
        raise ValueError(f"checkpoint {path}: does not fit the task: {' '.join(str(error).split())}") from error
    return model
