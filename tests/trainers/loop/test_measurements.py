"""The measurements of a run: the lines of its log, evaluations, progress, and the bytes that a rank holds."""

import math
import random
import time
from pathlib import Path
from typing import cast
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion
from torch import nn

from ringsim.console import Progress
from tests.ranks import RankPool
from tests.trainers.points import Points, Ran, Training, config, run
from trainers.checkpoints.checkpoint import load_checkpoint, seed_alike
from trainers.checkpoints.output import read_log
from trainers.loop.config import StepConfig, TrainConfig
from trainers.loop.meter import Meter, describe_evaluation, describe_line
from trainers.loop.train_step import StepMoments, StepResult, TrainStep
from trainers.loop.trainer import Trainer

LINE = {
    "step": 20, "epoch": 0, "loss": 2.5, "samples_per_s": 800.0, "step_s": 0.01, "sync_share": 0.25,
    "peak_memory_bytes": 2**28, "gradient_norm": 0.75, "time_left_s": 61.0,
}  # fmt: skip


def test_a_line_in_words(snapshot: SnapshotAssertion) -> None:
    """Also where there are no tokens, no loss, skipped steps, or a norm that is not finite."""
    changes = [{}, {"loss": None, "skipped": 10}, {"skipped": 1}, {"gradient_norm": None}, {"tokens_per_s": 51200.0}]
    assert [describe_line(LINE | change, 100) for change in changes] == snapshot


def test_the_log_has_means_of_the_steps_since_the_last_line(train: Training, snapshot: SnapshotAssertion) -> None:
    """With the epoch, rates, the share of time spent communicating, the memory, and how long the rest will take."""
    each, some = train("each")[0], train("some", log_every=5)[0]
    assert [(line["step"], line["epoch"]) for line in some.log] == [(5, 1), (10, 2), (12, 2)]
    assert some.losses == [sum(each.losses[a:b]) / (b - a) for a, b in ((0, 5), (5, 10), (10, 12))]
    assert [*some.log[0]] == snapshot
    for line in some.log:
        assert 0 < line["sync_share"] < 1
        assert min(line["samples_per_s"], line["step_s"]) > 0
        assert line["peak_memory_bytes"] > 2**20
    assert some.log[0]["time_left_s"] >= some.log[-1]["time_left_s"] == 0


def test_a_norm_that_is_not_finite_can_be_logged(train: Training) -> None:
    """JSON has no such number: gradients may overflow where the loss does not."""
    first, *others = train(options={"rate": 1e18}, steps=3)[0].log
    assert math.isfinite(first["gradient_norm"])
    assert [line["gradient_norm"] for line in others] == [None] * len(others)


def norms_beside_torchs(group: dist.ProcessGroup, strategy: str, clip_norm: float | None) -> list[tuple[float, float]]:
    """Return for each of a few steps the norm of the gradients, and that of one process with the whole batch."""
    task = Points(3, dropout=0.0)
    step_config = StepConfig(strategy=strategy, clip_norm=clip_norm, seed=3)
    train_step = TrainStep(task, step_config, group)
    batches = step_config.batches(task, 0, 1)
    pairs = []
    for step in range(3):
        before = {name: value.clone() for name, value in train_step.model.state_dict().items()}
        train_step.run(step)
        seed_alike(3)
        model = task.model()
        model.load_state_dict(before)
        torch.autograd.backward(task.loss(model, task.batch(batches.share(step).indices)))
        whole = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        pairs.append((train_step.gradient_norm(), whole.item()))
    return pairs


@pytest.mark.parametrize(("strategy", "clip_norm"), [("ring", None), ("bucketed", 0.5), ("ddp", None), ("zero1", 0.5)])
def test_the_norm_is_that_of_the_whole_batch(ranks: RankPool, strategy: str, clip_norm: float | None) -> None:
    """Before clipping, whoever has the gradients, and though the optimizer has stepped; the same on all ranks."""
    first, second = ranks.run(norms_beside_torchs, strategy, clip_norm, num_ranks=2)
    assert [norm for norm, _ in first] == [norm for norm, _ in second]
    for norm, whole in first:
        assert norm > 0.5
        assert norm == pytest.approx(whole, rel=1e-4)


def test_without_lines_nothing_grows(train: Training) -> None:
    """With log_every 0 the log stays empty, and a checkpoint holds no losses for a line that is never written."""
    done = train(log_every=0)[0]
    assert (done.error, done.log) == ("", [])
    assert load_checkpoint(train.folder / "run" / "checkpoint-12.pt").notes["losses"] == []


def lines_told(group: dist.ProcessGroup, asked: TrainConfig, gap_s: float) -> list[str]:
    """Return the lines of a run's log on this rank; gap_s: the least time between two of them."""
    told: list[str] = []
    trainer = Trainer(Points(3), asked, group, say=lambda _: None)
    with mock.patch("trainers.loop.trainer.LEAST_BETWEEN_LINES_S", gap_s):
        trainer.train(say_line=told.append)
    trainer.close()
    dist.barrier(group)
    return told


def test_rank_0_tells_each_line(ranks: RankPool, tmp_path: Path) -> None:
    """In the words of the log, an evaluation in its own line; a resumed run those of the steps that it takes itself."""
    told = []
    for steps in (5, 12):
        asked = config(tmp_path, steps=steps, log_every=2, eval_every=6, resume=True)
        first, second = ranks.run(lines_told, asked, 0.0, num_ranks=2)
        assert second == []
        told += first
    expected = []
    for line in (log := read_log(tmp_path / "log.jsonl")):
        expected.append(describe_line(line, steps := 5 if line["step"] <= 5 else 12))
        expected += [describe_evaluation(line["step"], steps, line["evaluation"])] if "evaluation" in line else []
    assert [line["step"] for line in log] == [2, 4, 5, 6, 8, 10, 12]
    assert told == expected


def test_lines_that_come_too_fast_are_written_and_not_told(ranks: RankPool, tmp_path: Path) -> None:
    """But for the first and the last."""
    told, _ = ranks.run(lines_told, config(tmp_path, steps=9, log_every=2), 3600.0, num_ranks=2)
    log = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in log] == [2, 4, 6, 8, 9]
    assert told == [describe_line(line, 9) for line in (log[0], log[-1])]


def run_drawing(group: dist.ProcessGroup, config: TrainConfig, _: None, until: int | None) -> Ran:
    """A run with evaluations that draw numbers from all generators."""

    def evaluate(points: Points, model: nn.Module) -> dict[str, float]:
        assert not model.training
        assert group.rank() == 0
        drawn = torch.rand(3).sum().item() + float(np.random.rand()) + random.random()
        return {**plain(points, model), "drawn": drawn * float("inf")}

    plain = Points.evaluate
    with mock.patch.object(Points, "evaluate", evaluate):
        return run(group, config, None, until)


def test_evaluating_changes_no_bit_of_the_training(train: Training) -> None:
    """With dropout; the log has a line, if need be of its own, in the very run and in one that was interrupted."""
    expected, every = train("without")[0], {"run": run_drawing, "eval_every": 3, "log_every": 4}
    evaluated = train("whole", **every)
    assert {each.fingerprint for each in evaluated} == {expected.fingerprint}
    log = evaluated[0].log
    assert [(line["step"], "evaluation" in line) for line in log] == [
        (3, True), (4, False), (6, True), (8, False), (9, True), (12, True),
    ]  # fmt: skip
    assert all(line["evaluation"]["drawn"] is None for line in log if "evaluation" in line)
    assert log[-1]["evaluation"]["loss"] < log[0]["evaluation"]["loss"]
    train("parts", until=7, **every)
    resumed = train("parts", resume=True, **every)[0]
    assert resumed.fingerprint == expected.fingerprint
    assert [line.get("evaluation") for line in resumed.log] == [line.get("evaluation") for line in log]


@pytest.mark.parametrize("loss", [0.5, 123456.789])
def test_a_long_run_s_progress_fits_80_columns(loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps, time left, loss, tokens and the share of exposed communication, which used to be cut."""
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    meter = Meter(cast(dist.ProcessGroup, None), tokens_per_sample=512)  # nothing is sent for a brief line
    progress = Progress()
    progress.begin("training", 100_000)
    for _ in range(2):
        clock[0] += 0.5
        meter.add(StepResult(loss, "", StepMoments(0.0, 0.3, 0.3, 0.3, 0.5, 0.5, 0.5, 0.5)), num_samples=1_000)
        progress.update(9_000, meter.brief())
    line = progress.line(79)
    assert line.startswith("training  18000/100000  0:0")
    assert line.endswith("1,024,000 tokens/s, 40% comm")


@pytest.mark.parametrize("strategy", ["none", "ring", "local_sgd/5", "zero1", "zero2"])
def test_held_bytes_are_counted_by_kind(train: Training, strategy: str, snapshot: SnapshotAssertion) -> None:
    """On every rank: of 1,481 parameters in six tensors, which "ring" gives a mark each, and two copies in AdamW.

    A sharded strategy holds less of what it shares, and pads; where no step is taken, nothing.
    """
    first, second = train(strategy=strategy)
    assert first.memory == second.memory == snapshot
    if strategy == "ring":
        assert [ran.memory for ran in train(strategy=strategy, resume=True)] == [None, None]
