"""Evaluations while it trains: they are logged and told, and change nothing of what is trained."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import RankPool
from tests.trainers.points import NUM_STEPS, Points, Ran, config, run
from trainers.checkpoints.step_log import TensorBoardLog
from trainers.loop.config import TrainConfig
from trainers.loop.trainer import Trainer


def run_drawing(group: dist.ProcessGroup, config: TrainConfig, until: int | None = None) -> Ran:
    """A run with evaluations that draw numbers from all generators."""

    def evaluate(points: Points, model: nn.Module) -> dict[str, float]:
        assert not model.training
        assert group.rank() == 0
        drawn = torch.rand(3).sum().item() + float(np.random.rand()) + random.random()
        return {**plain(points, model), "drawn": drawn * float("inf")}

    plain = Points.evaluate
    with mock.patch.object(Points, "evaluate", evaluate):
        return run(group, config, None, until)


def test_evaluating_changes_no_bit_of_the_training(ranks: RankPool, tmp_path: Path) -> None:
    """With dropout; the log has a line, if need be of its own, in the very run and in one that was interrupted."""
    expected = ranks.run(run, config(tmp_path / "without"), num_ranks=2)[0]
    whole, parts = (config(tmp_path / name, eval_every=3, log_every=4) for name in ("whole", "parts"))
    evaluated = ranks.run(run_drawing, whole, num_ranks=2)
    assert {each.fingerprint for each in evaluated} == {expected.fingerprint}
    log = evaluated[0].log
    assert [line["step"] for line in log] == [3, 4, 6, 8, 9, 12]
    assert [line["step"] for line in log if "evaluation" in line] == [3, 6, 9, 12]
    assert all(line["evaluation"]["drawn"] is None for line in log if "evaluation" in line)
    assert log[-1]["evaluation"]["loss"] < log[0]["evaluation"]["loss"]
    ranks.run(run_drawing, parts, 7, num_ranks=2)
    resumed = ranks.run(run_drawing, replace(parts, resume=True), num_ranks=2)[0]
    assert resumed.fingerprint == expected.fingerprint
    assert [line.get("evaluation") for line in resumed.log] == [line.get("evaluation") for line in log]


def lines_told(group: dist.ProcessGroup, config: TrainConfig) -> list[str]:
    """Return the lines that a rank is told while it trains."""
    told: list[str] = []
    trainer = Trainer(Points(config.seed), config, group)
    trainer.train(say_line=told.append)
    trainer.close()
    return told


def test_evaluations_are_told(ranks: RankPool, tmp_path: Path) -> None:
    """In a line after that of the step, by rank 0."""
    first, second = ranks.run(lines_told, config(tmp_path, eval_every=6, log_every=0), num_ranks=2)
    assert second == []
    assert [line.split(":")[0] for line in first] == ["step 6/12"] * 2 + [f"step {NUM_STEPS}/12"] * 2
    assert first[1].startswith("step 6/12: held-out data: loss ")


def test_figures_are_curves_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In TensorBoard; one that is not finite is left out."""
    pytest.importorskip("tensorboard")
    drawn: list[tuple[Any, ...]] = []
    log = TensorBoardLog(tmp_path, 0)
    monkeypatch.setattr(log._writer, "add_scalar", lambda *scalar: drawn.append(scalar))
    log.write({"step": 4, "loss": 2.5, "evaluation": {"loss": 2.0, "accuracy": None}})
    log.close()
    assert drawn == [("loss", 2.5, 4), ("evaluation/loss", 2.0, 4)]
