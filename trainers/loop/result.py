"""The end of a run: result.json, and a few lines to read."""

from pathlib import Path
from typing import Any

import torch

from ringsim.measurements import provenance
from ringsim.units import format_size, plural
from ringsim.verdict import TrainingSession
from trainers.checkpoints.manager import RESULT
from trainers.checkpoints.output import OPTIONS_FILE
from trainers.checkpoints.step_log import FOLDER, LOG
from trainers.loop.log_line import format_figures
from trainers.loop.trainer import Trainer
from trainers.replica_check import fingerprint
from trainers.tasks.base import evaluate, evaluating


def judge(trainer: Trainer) -> tuple[dict[str, Any], str]:
    """Return the figures of the trained model on held-out data, and what it shows; on one rank alone."""
    model = trainer.train_step.model.model
    figures = evaluate(trainer.task, model)
    with evaluating(model):
        return figures, trainer.task.show(model)


def result_of(trainer: Trainer, figures: dict[str, Any], train_s: float) -> dict[str, Any]:
    """Return the result for JSON. train_s: seconds of training since the launch, which may have been a resumption."""
    model, meter = trainer.train_step.model.model, trainer.meter
    return TrainingSession.FORMAT.write(
        {
            **trainer.identity,
            "num_parameters": sum(p.numel() for p in model.parameters()),
            "steps": trainer.num_steps,
            "resumed_at": trainer.first_step,
            "skipped_steps": meter.skipped,
            "last_loss": meter.last_loss,
            "memory_bytes": trainer.memory_bytes,  # of rank 0
            "evaluation": figures,
            "fingerprint": fingerprint(model),  # equal for two runs whose models are, bit for bit
            "checkpoint": trainer.manager.folder.path(trainer.num_steps).name,
            "train_s": train_s,
            "provenance": {**provenance(), "torch": torch.__version__},
        }
    )


def summary(trainer: Trainer, result: dict[str, Any]) -> str:
    """Return a few lines about the run."""
    training = result["training"]
    ranks = plural(training["num_ranks"], "rank")
    steps, first = result["steps"], result["resumed_at"]
    resumed = f", {first} of them before this launch" if first else ""
    lines = [
        f"{trainer.task.name}: {result['num_parameters']:,} parameters, strategy {training['strategy']} on {ranks}",
        f"  {plural(steps, 'step')} of {trainer.batches}{resumed}; {result['train_s']:.1f} s",
    ]
    if result["skipped_steps"]:
        lines.append(f"  {plural(result['skipped_steps'], 'step')} skipped because the loss was not finite")
    if result["last_loss"] is not None:
        lines.append(f"  loss of the last step {result['last_loss']:.4f}")
    if held := result["memory_bytes"]:
        names = {kind: kind for kind in held} | {"vectors": "buffers of the strategy"}
        sizes = (f"{names[kind]} {format_size(size_bytes)}" for kind, size_bytes in held.items())
        lines.append(f"  memory of rank 0: {', '.join(sizes)}")
    if result["evaluation"]:
        lines.append(f"  held-out data: {format_figures(result['evaluation'])}")
    return "\n".join(lines)


def written(trainer: Trainer, result: dict[str, Any]) -> list[Path]:
    """Return the files that the run leaves, but for older checkpoints."""
    config = trainer.config
    logs = [*([LOG] if config.log_every + config.eval_every else []), *([FOLDER] if config.tensorboard else [])]
    files = [trainer.manager.output / name for name in (result["checkpoint"], *logs, RESULT)]
    options = trainer.manager.output / OPTIONS_FILE
    files += [options] if options.exists() else []  # a program of a user's own writes none
    return [*files, *([config.profile] if config.profile else [])]
