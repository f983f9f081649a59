"""A run's own measurements: time, losses, and the bytes that a rank holds."""

import time
from pathlib import Path
from typing import cast

import pytest
import torch.distributed as dist

from ringsim.console import Progress
from ringsim.units import format_size
from tests.ranks import RankPool
from tests.trainers.points import Points, config
from trainers.loop.config import TrainConfig
from trainers.loop.meter import Meter
from trainers.loop.result import result_of, summary
from trainers.loop.train_step import StepResult
from trainers.loop.trainer import Trainer

NUM_BYTES = 4 * 1481  # of the parameters, in six tensors
SHARE = (NUM_BYTES + 4) // 2  # of two ranks, padded


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


def told(group: dist.ProcessGroup, wanted: TrainConfig) -> tuple[dict[str, int] | None, str]:
    """The bytes of this rank, and what rank 0 would print."""
    trainer = Trainer(Points(wanted.seed), wanted, group, say=lambda _: None)
    trainer.train()
    trainer.close()
    dist.barrier(group)  # only now has rank 0 written all it will
    return trainer.memory_bytes, summary(trainer, result_of(trainer, {}, 0.0))


@pytest.mark.parametrize(
    ("strategy", "gradients", "optimizer", "vectors"),
    [
        ("none", NUM_BYTES, 2 * NUM_BYTES, 0),
        ("ring", NUM_BYTES + 4 * 6, 2 * NUM_BYTES, 0),  # with a mark for each tensor
        ("local_sgd/5", NUM_BYTES, 2 * NUM_BYTES, NUM_BYTES),
        ("zero1", 2 * SHARE + SHARE, 2 * SHARE, 0),
    ],
)
def test_what_is_held_is_told(
    ranks: RankPool, tmp_path: Path, strategy: str, gradients: int, optimizer: int, vectors: int
) -> None:
    """On every rank, each kind by its name; a sharded strategy holds less of what it shares, and pads."""
    parameters = 2 * SHARE if strategy == "zero1" else NUM_BYTES
    expected = {"parameters": parameters, "gradients": gradients, "optimizer": optimizer, "vectors": vectors}
    results = ranks.run(told, config(tmp_path, strategy=strategy), num_ranks=2)
    assert [held for held, _ in results] == [expected, expected]
    kinds = ("parameters", "gradients", "optimizer", "buffers of the strategy")
    sizes = [f"{kind} {format_size(held)}" for kind, held in zip(kinds, expected.values(), strict=True)]
    assert f"  memory of rank 0: {', '.join(sizes)}" in results[0][1].splitlines()


def test_where_no_step_is_taken_nothing_is_told(ranks: RankPool, tmp_path: Path) -> None:
    """A run that is resumed when all steps are done has no gradients."""
    [(held, _)] = ranks.run(told, config(tmp_path), num_ranks=1)
    assert held is not None
    [(held, text)] = ranks.run(told, config(tmp_path, resume=True), num_ranks=1)
    assert held is None
    assert "memory" not in text
