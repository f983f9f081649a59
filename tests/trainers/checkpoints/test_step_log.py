"""The log of a run: whole lines, those that were damaged, and curves for TensorBoard."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.ranks import RankPool
from tests.trainers.points import config, run
from trainers.checkpoints.step_log import FOLDER, Mark, StepLog, TensorBoardLog, read_log
from trainers.cli.group import main

ADVICE = "needs tensorboard, which is not installed: run pip install '.[tensorboard]' in your clone of ringsim"
FIGURES = {"loss", "samples_per_s", "step_s", "sync_share", "gradient_norm", "peak_memory_bytes", "time_left_s"}


def lines(*steps: int) -> list[dict[str, int]]:
    """Return the lines that are written for these steps."""
    return [{"step": step, "loss": 10 * step} for step in steps]


def write(path: Path, begin: int, *steps: int) -> None:
    """A run from `begin` that logs these steps."""
    log = StepLog(path, begin)
    for line in lines(*steps):
        log.write(line)
    log.sync()
    log.close()


def test_a_new_run_begins_an_empty_log(tmp_path: Path) -> None:
    """Whatever a run that never came to a checkpoint has left."""
    path = tmp_path / "log.jsonl"
    write(path, 0, 1, 2, 3)
    assert read_log(path) == lines(1, 2, 3)
    write(path, 0, 1)
    assert read_log(path) == lines(1)


def test_a_resumed_run_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    """Later lines are dropped; nothing else is left in the directory, and nothing said."""
    path = tmp_path / "log.jsonl"
    write(path, 0, 1, 2, 3, 4)
    said: list[str] = []
    log = StepLog(path, 2, mark_of(tmp_path, 1, 2), said.append)
    log.write(lines(3)[0])
    log.close()
    assert (read_log(path), said) == (lines(1, 2, 3), [])
    assert log.mark == mark_of(tmp_path, 1, 2, 3)
    assert list(tmp_path.iterdir()) == [path]


def mark_of(folder: Path, *steps: int) -> Mark:
    """Return the mark that a checkpoint after these lines would hold."""
    log = StepLog(folder / "other.jsonl", 0)
    for line in lines(*steps):
        log.write(line)
    log.close()
    (folder / "other.jsonl").unlink()
    return log.mark


def content(*steps: int) -> str:
    """Of a log with these lines."""
    return "".join(json.dumps(line) + "\n" for line in lines(*steps))


@pytest.mark.parametrize(
    ("damaged", "kept", "trouble"),
    [
        (content(1, 2, 3) + '{"step": 4, "lo', (1, 2, 3), "1 of its lines is damaged"),
        ("nonsense\n[1]\n" + content(1, 2, 3), (1, 2, 3), "2 of its lines are damaged"),
        (content(1, 2, 2, 3), (1, 2, 3), "1 of its lines is damaged"),
        (content(1, 3), (1, 3), "has 2 good lines of the 3 that the run had written by then"),
        (content(1, 2, 3).replace("20", "21"), None, "its lines differ from those that the run had written by then"),
        ("", (), "has 0 good lines of the 3 that the run had written by then"),
    ],
)
def test_a_damaged_log_is_kept_beside(tmp_path: Path, damaged: str, kept: tuple[int, ...] | None, trouble: str) -> None:
    """As it was, and in one line it is said; a second one does not overwrite the first."""
    path, mark = tmp_path / "log.jsonl", mark_of(tmp_path, 1, 2, 3)
    for name in ("log.jsonl.damaged", "log.jsonl.damaged.2"):
        path.write_text(damaged)
        said: list[str] = []
        StepLog(path, 3, mark, said.append).close()
        beside = f" it is kept as {name}, and" if damaged else ""
        num_kept = 3 if kept is None else len(kept)
        assert said == [f"{path}: {trouble}:{beside} the run continues with the {num_kept} good lines up to step 3"]
        assert not damaged or (tmp_path / name).read_text() == damaged
        assert kept is None or read_log(path) == lines(*kept)


def test_a_log_that_is_gone_is_begun_anew(tmp_path: Path) -> None:
    """Somebody may have deleted it."""
    write(tmp_path / "log.jsonl", 4, 5)
    assert read_log(tmp_path / "log.jsonl") == lines(5)
    assert read_log(tmp_path / "other.jsonl") == []


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full after half a line: OSError names the file, and its lines are whole."""
    path = tmp_path / "log.jsonl"
    log = StepLog(path, 0)
    log.write({"step": 1})

    class Full:
        """Takes five bytes, then no more."""

        def __init__(self, file: object) -> None:
            self.file, self.taken = file, 0

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

        def write(self, data: bytes) -> int:
            if self.taken:
                raise OSError(28, os.strerror(28))
            self.taken = path.open("ab", buffering=0).write(data[:5])
            return self.taken

    monkeypatch.setattr(log, "_file", Full(log._file))
    with pytest.raises(OSError, match=r"No space left on device: '.*log.jsonl'"):
        log.write({"step": 2})
    assert path.read_bytes() == b'{"step": 1}\n'
    log.close()


def test_no_line_has_what_json_has_not(tmp_path: Path) -> None:
    """A loss that is not a number is never logged as one."""
    log = StepLog(tmp_path / "log.jsonl", 0)
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.write({"step": 1, "loss": float("nan")})
    log.close()


@pytest.mark.parametrize(
    "torn",
    [b"[" * 10**5, b'{"step": 1' + b"0" * 5000 + b"}", b'{"step": 2, "loss": NaN}', b"\xff"],
    ids=["deep", "huge", "NaN", "binary"],
)
def test_a_line_that_is_no_json_is_dropped(tmp_path: Path, torn: bytes) -> None:
    """As a torn one is, whatever is wrong with it."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n' + torn + b"\n")
    assert read_log(path) == [{"step": 1}]
    StepLog(path, 1).close()
    assert path.read_bytes() == b'{"step": 1}\n'


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the curves that TensorBoard shows of a directory: steps and values, by name."""
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
