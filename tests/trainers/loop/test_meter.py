"""What is told of a run while it trains."""

import time
from typing import cast

import pytest
import torch.distributed as dist

from ringsim.console import Progress
from trainers.loop.meter import Meter
from trainers.loop.train_step import StepResult


@pytest.mark.parametrize("loss", [0.5, 10.98765, 123456.789])
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
        meter.add(StepResult(loss, "", forward_s=0.3, loss_sync_s=0.0, sync_s=0.2), num_samples=1_000)
        progress.update(9_000, meter.brief())
    assert len(progress.line()) > 79  # with the bar
    line = progress.line(79)
    assert line.startswith("training  18000/100000  0:0")
    assert line.endswith("1,024,000 tokens/s, 40% comm")


def test_samples_are_told_where_there_are_no_tokens() -> None:
    """As in a task of a user's own."""
    assert "samples/s" in Meter(cast(dist.ProcessGroup, None), tokens_per_sample=0).brief()
