"""What is written for TensorBoard: the figures of the log, of each step once."""

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.ranks import RankPool
from tests.trainers.points import config, run
from trainers.checkpoints.step_log import FOLDER, TensorBoardLog
from trainers.cli.group import main

ADVICE = "needs tensorboard, which is not installed: pip install 'ringsim[tensorboard]'"
FIGURES = {"loss", "samples_per_s", "step_s", "sync_share", "gradient_norm", "peak_memory_bytes", "time_left_s"}


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a directory: steps and values, by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_a_line_can_be_seen_at_once(tmp_path: Path) -> None:
    """While the run goes on; what is no number is left out."""
    pytest.importorskip("tensorboard")
    log = TensorBoardLog(tmp_path / "new" / FOLDER, 0)
    log.write({"step": 10, "loss": 2.5, "gradient_norm": None, "time": "2026-01-01"})
    assert curves(tmp_path / "new" / FOLDER) == {"loss": [(10, 2.5)]}
    log.close()


def test_a_resumed_run_has_each_step_once(ranks: RankPool, tmp_path: Path) -> None:
    """Though the first launch had gone two steps further than its last checkpoint; the same as the log."""
    pytest.importorskip("tensorboard")
    interrupted = ranks.run(run, config(tmp_path, tensorboard=True), None, 7, num_ranks=2)[0]
    assert interrupted.log[-1]["step"] == 6
    done = ranks.run(run, config(tmp_path, tensorboard=True, resume=True), num_ranks=2)[0]
    assert done.error == ""
    shown = curves(tmp_path / FOLDER)
    assert shown.keys() == FIGURES | {"epoch"}
    for name, points in shown.items():
        assert points == [(line["step"], pytest.approx(line[name])) for line in done.log], name


def test_what_is_missing_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch is loaded; nothing is written."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = CliRunner().invoke(main, ["train", "--tensorboard", "--output", str(tmp_path / "run")])
    assert (done.exit_code, done.stderr) == (2, f"trainers: --tensorboard: {ADVICE}\n")
    assert list(tmp_path.iterdir()) == []


def test_in_a_program_all_ranks_hear_of_it(ranks: RankPool, tmp_path: Path) -> None:
    """Rather than waiting for rank 0, which alone writes."""
    if importlib.util.find_spec("tensorboard") is not None:
        pytest.skip("tensorboard is installed")
    for each in ranks.run(run, config(tmp_path, tensorboard=True), num_ranks=2):
        assert each.error == f"ValueError: --tensorboard: {ADVICE}"
