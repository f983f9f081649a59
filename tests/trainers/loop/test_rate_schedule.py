"""The learning rate of a step follows from the step: after a resumption, too, and beside torch's own schedules."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.optim import lr_scheduler

from tests.ranks import RankPool
from tests.trainers.points import NUM_STEPS, config, run
from trainers.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from trainers.loop.rate_schedule import RateSchedule, ScheduledRates

WARM_UP = {"lr_schedule": "cosine", "warmup_steps": 3}


def test_a_rate_is_that_of_torchs_schedules() -> None:
    """A linear warm-up, then a cosine; the rates of groups of their own all follow it, a tensor as well."""
    groups = [{"lr": 0.5, "params": []}, {"lr": torch.tensor(2.0), "params": []}]
    rates = ScheduledRates(groups, RateSchedule("cosine", warmup_steps=4, num_steps=12))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    warm_up = lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    torchs = lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[4])
    for step in range(12):
        rates.set(groups, step)
        assert groups[0]["lr"] == pytest.approx(torchs.get_last_lr()[0], abs=1e-9)
        assert float(groups[1]["lr"]) == pytest.approx(4 * torchs.get_last_lr()[0], abs=1e-6)
        optimizer.step()
        torchs.step()


def test_without_a_schedule_the_rate_is_the_tasks_own() -> None:
    """Which its optimizer may change as it likes, or not have at all."""
    groups = [{"lr": 0.5}, {"params": []}]
    rates = ScheduledRates(groups, RateSchedule())
    groups[0]["lr"] = 0.25
    rates.set(groups, 1)
    assert groups == [{"lr": 0.25}, {"params": []}]
    with pytest.raises(ValueError, match="--lr-schedule, --warmup-steps: the task's optimizer has no learning rate"):
        ScheduledRates(groups, RateSchedule("cosine"))


@pytest.mark.parametrize("strategy", ["ring", "zero1"])
def test_a_resumed_run_has_the_rates_of_the_uninterrupted_one(ranks: RankPool, tmp_path: Path, strategy: str) -> None:
    """Bit for bit; the log has them; and one that is to have more steps would have other rates from the first on."""
    whole, parts = (config(tmp_path / name, strategy=strategy, **WARM_UP) for name in ("whole", "parts"))
    expected = ranks.run(run, whole, num_ranks=2)[0]
    schedule = whole.schedule(NUM_STEPS)
    assert [line["learning_rate"] for line in expected.log] == [0.05 * schedule.factor(n) for n in range(NUM_STEPS)]
    ranks.run(run, parts, None, 6, num_ranks=2)
    resumed = ranks.run(run, replace(parts, resume=True), num_ranks=2)[0]
    assert (resumed.losses, resumed.fingerprint) == (expected.losses, expected.fingerprint)
    longer = ranks.run(run, replace(parts, resume=True, epochs=4), num_ranks=2)[0]
    assert "is of a run with schedule_steps 12, now 16: resume with what it began with" in longer.error


def test_a_checkpoint_from_before_there_were_schedules_goes_on(ranks: RankPool, tmp_path: Path) -> None:
    """It is one of a constant rate."""
    ranks.run(run, config(tmp_path), None, 6, num_ranks=2)
    path = tmp_path / "checkpoint-4.pt"
    checkpoint = load_checkpoint(path)
    for name in ("lr_schedule", "warmup_steps", "schedule_steps"):
        del checkpoint.config["training"][name]
    save_checkpoint(path, checkpoint)
    assert ranks.run(run, config(tmp_path, resume=True), num_ranks=2)[0].error == ""
