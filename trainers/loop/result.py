"""What a session leaves at its end: result.json, and a few lines to read."""

import math
from typing import Any

import torch

from ringsim.measurements import provenance, save_json
from trainers.identity import fingerprint
from trainers.loop.keeper import RESULT
from trainers.loop.session import Session
from trainers.tasks.evaluating import evaluating


def judge(session: Session) -> tuple[dict[str, Any], str]:
    """The figures of the trained model on held-out data, and what is to be seen of it; on one rank alone."""
    model = session.learner.model.model
    with evaluating(model):
        figures = session.task.evaluate(model)
        shown = session.task.show(model)
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}, shown


def result_of(session: Session, figures: dict[str, Any], train_s: float) -> dict[str, Any]:
    """For JSON. train_s: seconds of training since the launch, which may have been a resumption."""
    model, meter = session.learner.model.model, session.meter
    return {
        "format": "ringsim-session",
        "version": 1,
        **session.config_saved,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "steps": session.num_steps,
        "resumed_at": session.first_step,
        "skipped_steps": meter.skipped,
        "last_loss": meter.last_loss,
        "evaluation": figures,
        "fingerprint": fingerprint(model),  # equal for two runs whose models are, bit for bit
        "checkpoint": session.keeper.folder.path(session.num_steps).name,
        "train_s": train_s,
        "provenance": {**provenance(), "torch": torch.__version__},
    }


def save_result(session: Session, result: dict[str, Any]) -> None:
    """Write it to the output directory, whole or not at all. Raises OSError if it cannot be written."""
    save_json(session.keeper.output / RESULT, result)


def summary(session: Session, result: dict[str, Any]) -> str:
    """A few lines."""
    training = result["training"]
    ranks = f"{training['num_ranks']} rank{'s' if training['num_ranks'] > 1 else ''}"
    steps, first = result["steps"], result["resumed_at"]
    resumed = f", {first} of them before this launch" if first else ""
    lines = [
        f"{session.task.name}: {result['num_parameters']:,} parameters, strategy {training['strategy']} on {ranks}",
        f"  {steps} steps of {training['batch_size']} samples{resumed}; {result['train_s']:.1f} s",
    ]
    if result["skipped_steps"]:
        lines.append(f"  {result['skipped_steps']} steps were left out, as their loss was not finite")
    if result["last_loss"] is not None:
        lines.append(f"  loss of the last step {result['last_loss']:.4f}")
    figures = ", ".join(
        f"{name} {'nan' if value is None else f'{value:.4f}'}" for name, value in result["evaluation"].items()
    )
    if figures:
        lines.append(f"  held-out data: {figures}")
    return "\n".join([*lines, f"  in {session.keeper.output}: {result['checkpoint']}, log.jsonl, {RESULT}"])
