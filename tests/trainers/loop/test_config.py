"""How a model is trained: values out of range are refused, and the learning rate follows its schedule."""

from pathlib import Path
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch.optim import lr_scheduler

from tests.refusals import refused, said_by
from trainers.loop.config import RateSchedule, ScheduledRates, TrainConfig, require_compiler
from trainers.strategies import STRATEGIES

WRONG: list[dict[str, Any]] = [
    {"strategy": "rung"}, {"batch_size": 0}, {"batch_size": 2**22 + 1}, {"accumulate": 0}, {"clip_norm": 0.0},
    {"on_nan": "maybe"}, {"on_nan": None}, {"amp": "float16"}, {"lr_schedule": "cos"}, {"lr_schedule": None},
    {"warmup_steps": -1}, {"seed": -1}, {"steps": 0}, {"save_every": 0}, {"save_every": "0epochs"},
    {"save_every": "soon"}, {"keep": 0}, {"log_every": -1}, {"log_every": 0, "tensorboard": True}, {"check_every": -1},
]  # fmt: skip


def test_what_cannot_be_is_refused(snapshot: SnapshotAssertion) -> None:
    """In one line with the option, its value and the rule."""
    said = [said_by(ValueError, TrainConfig, output=Path("run"), **options) for options in WRONG]
    assert not any("\n" in message for message in said)
    assert [message.replace(", ".join(STRATEGIES), "STRATEGIES") for message in said] == snapshot


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
    with pytest.raises(ValueError, match="`lr_schedule`, `warmup_steps`: the task's optimizer has no learning rate"):
        ScheduledRates(groups, RateSchedule("cosine"))


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With what to do; so, too, missing headers that the compiled code includes."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with refused("`compile`: there is no C++ compiler 'no-such-compiler': install one..."):
        require_compiler()
    (tmp_path / "c++").touch(mode=0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with refused(f"`compile`: there is no {tmp_path}/Python.h: install Python's headers..."):
        require_compiler()
