"""The log of a run: whole lines, those that were damaged, and curves for TensorBoard."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.ranks import RankPool
from tests.trainers.points import config, run
from trainers.checkpoints.step_log import DAMAGED, FOLDER, Mark, StepLog, TensorBoardLog, read_log
from trainers.cli.group import main

ADVICE = "needs tensorboard, which is not installed: run pip install '.[tensorboard]' in your clone of ringsim"
FIGURES = {"loss", "samples_per_s", "step_s", "sync_share", "gradient_norm", "peak_memory_bytes", "time_left_s"}


def lines(*steps: int) -> list[dict[str, int]]:
    """Return the lines that are written for these steps."""
    return [{"step": step, "loss": 10 * step} for step in steps]


def write(path: Path, *steps: int) -> Mark:
    """A new run that logs these steps."""
    log = StepLog(path)
    for line in lines(*steps):
        log.write(line)
    log.sync()
    log.close()
    return log.mark


def test_a_new_run_begins_an_empty_log(tmp_path: Path) -> None:
    """Whatever a run that never came to a checkpoint has left; somebody may have deleted it."""
    path = tmp_path / "log.jsonl"
    assert read_log(path) == []
    write(path, 1, 2, 3)
    assert read_log(path) == lines(1, 2, 3)
    write(path, 1)
    assert read_log(path) == lines(1)


def test_a_resumed_run_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    """Later lines are dropped, half a line too; nothing else is left in the directory, and nothing said."""
    path, other = tmp_path / "log.jsonl", tmp_path / "other.jsonl"
    mark, later = write(other, 1, 2), write(other, 1, 2, 3)
    other.unlink()
    write(path, 1, 2, 3, 4)
    path.write_bytes(path.read_bytes() + b'{"step": 5, "lo')
    said: list[str] = []
    log = StepLog(path, 2, mark, said.append)
    log.write(lines(3)[0])
    log.close()
    assert (read_log(path), said) == (lines(1, 2, 3), [])
    assert log.mark == later
    assert list(tmp_path.iterdir()) == [path]


def content(*steps: int) -> str:
    """Of a log with these lines."""
    return "".join(json.dumps(line) + "\n" for line in lines(*steps))


@pytest.mark.parametrize(
    ("damaged", "kept"),
    [
        (content(1, 2) + '{"step": 3, "lo', (1, 2)),
        ("nonsense\n[1]\n" + content(1, 2, 3), (1, 2, 3)),
        (content(1, 2, 2, 3), (1, 2, 3)),
        (content(1, 3), (1, 3)),
        (content(1, 2, 3).replace("20", "21"), None),
        ("", ()),
    ],
)
def test_a_damaged_log_is_kept_beside(tmp_path: Path, damaged: str, kept: tuple[int, ...] | None) -> None:
    """As it was, and in one line it is said; the run goes on with the lines that are lines."""
    path = tmp_path / "log.jsonl"
    mark = write(path, 1, 2, 3)
    path.write_text(damaged)
    said: list[str] = []
    StepLog(path, 3, mark, said.append).close()
    assert said == [
        f"{path}: is not as the run had written it by step 3: it is kept as {DAMAGED}, and the run continues with its "
        f"{3 if kept is None else len(kept)} good lines up to that step"
    ]
    assert (tmp_path / DAMAGED).read_text() == damaged
    assert kept is None or read_log(path) == lines(*kept)


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full after half a line: OSError names the file, and its lines are whole."""
    path = tmp_path / "log.jsonl"
    log = StepLog(path)
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
    log = StepLog(tmp_path / "log.jsonl")
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
