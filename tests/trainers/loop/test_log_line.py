"""The lines of a log: what they say of the gradients, and who is told of them."""

import math
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.points import NUM_STEPS, Points, config, run
from trainers.checkpoints.checkpoint import load_checkpoint, seed_alike
from trainers.checkpoints.step_log import read_log
from trainers.loop.config import StepConfig, TrainConfig
from trainers.loop.log_line import describe_line, peak_memory_bytes
from trainers.loop.train_step import TrainStep
from trainers.loop.trainer import Trainer

LINE = {
    "step": 20, "epoch": 0, "loss": 2.5, "samples_per_s": 800.0, "step_s": 0.01, "sync_share": 0.25,
    "peak_memory_bytes": 2**28, "gradient_norm": 0.75, "time_left_s": 61.0,
}  # fmt: skip


def test_samples_are_told_where_there_are_no_tokens() -> None:
    """As in a task of a user's own; tokens otherwise, as the example of `describe_line` shows."""
    assert describe_line(LINE, 100) == (
        "step 20/100: mean loss 2.5, 800 samples/s, 10 ms a step, 25% exposed communication, gradient norm 0.75, "
        "memory 256 MiB, 1:01 left"
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"loss": None, "skipped": 10},
            "step 20/100: no loss, 800 samples/s, 10 ms a step, 25% exposed communication, ",
        ),
        ({"skipped": 1}, ", gradient norm 0.75, 1 step skipped, memory "),
        ({"gradient_norm": None}, ", gradient norm not finite, memory "),
    ],
)
def test_what_is_not_known_is_told_too(changed: dict[str, object], words: str) -> None:
    """In a word or a number."""
    assert words in describe_line(LINE | changed, 100)


def test_a_process_has_a_peak_of_memory() -> None:
    """Which stays when the memory is given back."""
    before = peak_memory_bytes()
    bytearray(b"1" * 2**28)
    after = peak_memory_bytes()
    assert after >= max(before, 2**28)


def test_a_norm_that_is_not_finite_can_be_logged(ranks: RankPool, tmp_path: Path) -> None:
    """JSON has no such number: gradients may overflow where the loss does not."""
    done = ranks.run(run, config(tmp_path, steps=3), {"rate": 1e18}, num_ranks=2)[0]
    assert math.isfinite(done.log[0]["gradient_norm"])
    assert [line["gradient_norm"] for line in done.log[1:]] == [None] * len(done.log[1:])


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
        whole = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        pairs.append((train_step.gradient_norm(), whole.item()))
    return pairs


@pytest.mark.parametrize(("strategy", "clip_norm"), [("ring", None), ("bucketed", 0.5), ("ddp", None), ("zero1", 0.5)])
def test_the_norm_is_that_of_the_whole_batch_before_clipping(
    ranks: RankPool, strategy: str, clip_norm: float | None
) -> None:
    """Whoever has the gradients, and though the optimizer has stepped; the same on all ranks."""
    first, second = ranks.run(norms_beside_torchs, strategy, clip_norm, num_ranks=2)
    assert [norm for norm, _ in first] == [norm for norm, _ in second]
    for norm, whole in first:
        assert norm > 0.5
        assert norm == pytest.approx(whole, rel=1e-4)


def test_without_lines_nothing_grows(ranks: RankPool, tmp_path: Path) -> None:
    """With log_every 0 the log stays empty, and a checkpoint holds no losses for a line that is never written."""
    done = ranks.run(run, config(tmp_path, log_every=0), num_ranks=2)[0]
    assert (done.error, done.log) == ("", [])
    assert load_checkpoint(tmp_path / f"checkpoint-{NUM_STEPS}.pt").notes["losses"] == []


def lines_told(group: dist.ProcessGroup, asked: TrainConfig, gap_s: float) -> list[str]:
    """Return the lines of a run's log on this rank; gap_s: at least so long after the line before."""
    told: list[str] = []
    trainer = Trainer(Points(3), asked, group, say=lambda _: None)
    with patch("trainers.loop.trainer.LEAST_BETWEEN_LINES_S", gap_s):
        trainer.train(say_line=told.append)
    trainer.close()
    dist.barrier(group)
    return told


def test_rank_0_tells_each_line(ranks: RankPool, tmp_path: Path) -> None:
    """In the words of the log; a resumed run those of the steps that it takes itself."""
    lines_of = {}
    for steps in (5, 12):
        asked = config(tmp_path, steps=steps, log_every=2, resume=True)
        first, second = ranks.run(lines_told, asked, 0.0, num_ranks=2)
        assert second == []
        lines_of[steps] = first
    log = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in log] == [2, 4, 5, 6, 8, 10, 12]
    assert lines_of == {
        5: [describe_line(line, 5) for line in log[:3]],
        12: [describe_line(line, 12) for line in log[3:]],
    }


def test_lines_that_come_too_fast_are_written_and_not_told(ranks: RankPool, tmp_path: Path) -> None:
    """But for the first and the last."""
    told, _ = ranks.run(lines_told, config(tmp_path, steps=9, log_every=2), 3600.0, num_ranks=2)
    log = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in log] == [2, 4, 6, 8, 9]
    assert told == [describe_line(line, 9) for line in (log[0], log[-1])]
