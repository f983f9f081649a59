"""How the strategy comparison is going: a line of all strategies every few steps."""

from pathlib import Path

import pytest
import torch.distributed as dist

from tests.ranks import RankPool
from trainers.checkpoints.step_log import read_log
from trainers.loop.config import StepConfig
from trainers.strategy_comparison.config import JobConfig, LogConfig
from trainers.strategy_comparison.job import start_runs, train_in_turn
from trainers.strategy_comparison.job_log import JobLog, describe_job_line
from trainers.strategy_comparison.report import tokens_per_step
from trainers.tasks import LanguageModel

TASK = LanguageModel(5, learning_rate=1e-2, d_model=16, heads=2, layers=1, d_ff=32, sequence_length=16)
CONFIG = JobConfig(TASK, "topics", StepConfig(batch_size=3, seed=5), ("none", "ring", "ddp", "zero1"), 5)
TOKENS = 2 * 3 * 16
FIGURES = {"loss": 2.5, "tokens_per_s": 1000.0, "step_s": 0.01, "sync_share": 0.25, "gradient_norm": 0.5}
SLOW = {"loss": 2.5001, "tokens_per_s": 500.0, "step_s": 0.02, "sync_share": 0.75, "gradient_norm": None}
PROCESS = {"step": 20, "peak_memory_bytes": 2**28, "time_left_s": 61.0}


@pytest.mark.parametrize(
    ("strategies", "words"),
    [
        (
            {"ring": FIGURES},
            "mean loss 2.5, 1,000 tokens/s, 10 ms a step, 25% exposed communication, gradient norm 0.5",
        ),
        (
            {"none": FIGURES, "ring": SLOW},
            "mean loss 2.5, 500 to 1,000 tokens/s, 10 ms (none) to 20 ms (ring) a step, 25% (none) to 75% (ring) "
            "exposed communication, "
            "gradient norm 0.5 to not finite",
        ),
    ],
)
def test_a_line_has_the_range_of_all_strategies(strategies: dict[str, object], words: str) -> None:
    """With the names of the fastest and the slowest; one strategy alone is told as every run is."""
    line = PROCESS | {"strategies": strategies}
    assert describe_job_line(line, 100) == f"step 20/100: {words}, memory 256 MiB, 1:01 left"


def logged(group: dist.ProcessGroup, config: LogConfig) -> tuple[list[str], dict[str, list[float]], dict[str, float]]:
    """Return the lines that are told, and by strategy the losses and the last norm."""
    told: list[str] = []
    runs = start_runs(CONFIG, group)
    assert tokens_per_step(CONFIG, group.size()) == TOKENS
    log = JobLog(config, CONFIG.steps, TOKENS, group, told.append)
    train_in_turn(runs, CONFIG.steps, log=log)
    log.close()
    dist.barrier(group)
    losses = {run.name: run.notes().losses for run in runs}
    return told, losses, {run.name: run.train_step.gradient_norm() for run in runs}


def test_lines_hold_the_steps_since_the_last(ranks: RankPool, tmp_path: Path) -> None:
    """And after the last step, what is left; only rank 0 tells them."""
    first, second = ranks.run(logged, LogConfig(tmp_path / "new", 2), num_ranks=2)
    told, losses, norms = first
    lines = read_log(tmp_path / "new" / "log.jsonl")
    assert [line["step"] for line in lines] == [2, 4, 5]
    for line, (begin, end) in zip(lines, ((0, 2), (2, 4), (4, 5)), strict=True):
        assert list(line["strategies"]) == list(CONFIG.strategies)
        for name, figures in line["strategies"].items():
            assert figures.keys() == FIGURES.keys()
            assert figures["loss"] == pytest.approx(sum(losses[name][begin:end]) / (end - begin))
            assert figures["tokens_per_s"] == pytest.approx(TOKENS / figures["step_s"], rel=1e-2)
            assert 0 <= figures["sync_share"] <= 1
    last = lines[-1]["strategies"]
    assert {name: figures["gradient_norm"] for name, figures in last.items()} == pytest.approx(norms, rel=1e-4)
    assert last["zero1"]["gradient_norm"] == pytest.approx(last["ddp"]["gradient_norm"], rel=1e-3)
    assert lines[-1]["time_left_s"] == 0
    assert told == [describe_job_line(line, CONFIG.steps) for line in lines]
    assert second[0] == []


def test_without_lines_there_is_no_log(ranks: RankPool, tmp_path: Path) -> None:
    """With --log-every 0 the directory is left alone until there are results."""
    assert [told for told, _, _ in ranks.run(logged, LogConfig(tmp_path / "new", 0), num_ranks=2)] == [[], []]
    assert list(tmp_path.iterdir()) == []


def test_each_strategy_is_a_run_of_tensorboard(ranks: RankPool, tmp_path: Path) -> None:
    """So that their curves lie on one another."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    ranks.run(logged, LogConfig(tmp_path, 2, tensorboard=True), num_ranks=2)
    lines = read_log(tmp_path / "log.jsonl")
    assert sorted(path.name for path in (tmp_path / "tensorboard").iterdir()) == sorted(CONFIG.strategies)
    for name in CONFIG.strategies:
        events = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / name))
        events.Reload()
        for figure in FIGURES:
            shown = [(event.step, event.value) for event in events.Scalars(figure)]
            expected = [(line["step"], pytest.approx(line["strategies"][name][figure])) for line in lines]
            assert shown == expected
