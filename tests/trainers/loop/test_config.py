"""How a model is trained: values out of range are refused, and the learning rate follows its schedule."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from tests.refusals import refused
from trainers.loop.config import RateSchedule, ScheduledRates, TrainConfig, require_compiler


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "rung"}, "--strategy 'rung' is not one of none, allreduce"),
        ({"batch_size": 0}, "--batch-size 0: must be at least 1"),
        ({"batch_size": 2**22 + 1}, "--batch-size 4194305: must be at most 4194304"),
        ({"accumulate": 0}, "--accumulate 0: must be at least 1"),
        ({"clip_norm": 0.0}, "--clip-norm 0.0: must be finite and greater than 0"),
        ({"on_nan": "maybe"}, "--on-nan maybe: must be one of stop, skip"),
        ({"on_nan": None}, "--on-nan None: must be one of stop, skip"),
        ({"amp": "float16"}, "--amp float16: must be one of bfloat16"),
        ({"lr_schedule": "cos"}, "--lr-schedule cos: must be one of constant, cosine"),
        ({"lr_schedule": None}, "--lr-schedule None: must be one of constant, cosine"),
        ({"warmup_steps": -1}, "--warmup-steps -1: must be at least 0"),
        ({"seed": -1}, "--seed -1: must be at least 0 and less than 2**63"),
        ({"steps": 0}, "--steps 0: must be at least 1"),
        ({"save_every": 0}, "--save-every 0: must be at least 1"),
        ({"save_every": "0epochs"}, "--save-every 0: must be at least 1"),
        ({"save_every": "soon"}, "--save-every soon: must be a number of steps, such as 100, or of epochs, such as 1e"),
        ({"keep": 0}, "--keep 0: must be at least 1"),
        ({"log_every": -1}, "--log-every -1: must be at least 0, which is never"),
        ({"log_every": 0, "tensorboard": True}, "--tensorboard: with --log-every 0 there is nothing to write"),
        ({"check_every": -1}, "--check-every -1: must be at least 0, which is never"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    """In one line with the option, its value and the rule."""
    with refused(f"{message}..."):
        TrainConfig(output=Path("run"), **options)


def test_values_may_be_text() -> None:
    """Paths, as a program writes them, and the steps between checkpoints, which may be epochs apart."""
    config = TrainConfig(output="run", profile="trace.json")  # type: ignore[arg-type]
    assert (config.output, config.profile) == (Path("run"), Path("trace.json"))
    for given, steps in {7: 7, "7": 7, "1epoch": 25, "3 epochs": 75}.items():
        assert TrainConfig(output=Path("run"), save_every=given).steps_between_saves(25) == steps


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


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With what to do; so, too, missing headers that the compiled code includes."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with refused("--compile: there is no C++ compiler 'no-such-compiler': install one..."):
        require_compiler()
    (tmp_path / "c++").touch(mode=0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with refused(f"--compile: there is no {tmp_path}/Python.h: install Python's headers..."):
        require_compiler()
