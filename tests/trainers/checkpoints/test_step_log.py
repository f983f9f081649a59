"""The log of a run: whole lines, those that were damaged, and curves for TensorBoard."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.refusals import refused
from tests.trainers.points import Training
from trainers.checkpoints.output import DAMAGED, FOLDER, Mark, StepLog, TensorBoardLog, read_log
from trainers.cli.group import main

ADVICE = "needs tensorboard, which is not installed: run pip install '.[tensorboard]' in your clone of ringsim"


def lines(*steps: int) -> list[dict[str, int]]:
    """Return the lines that are written for these steps."""
    return [{"step": step, "loss": 10 * step} for step in steps]


def content(*steps: int) -> bytes:
    """Return the content of a log with these lines."""
    return "".join(json.dumps(line) + "\n" for line in lines(*steps)).encode()


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
    for steps in ((1, 2, 3), (1,)):
        write(path, *steps)
        assert read_log(path) == lines(*steps)


@pytest.mark.parametrize(
    ("left", "kept", "is_damaged"),
    [
        (content(1, 2, 3), (1, 2, 3), False),
        (content(1, 2, 3, 4) + b'{"step": 5, "lo', (1, 2, 3), False),
        (content(1, 2) + b'{"step": 3, "lo', (1, 2), True),
        (b"nonsense\n[1]\n" + content(1, 2, 3), (1, 2, 3), True),
        (content(1, 2, 2, 3), (1, 2, 3), True),
        (content(1, 3), (1, 3), True),
        (content(1, 2, 3).replace(b"20", b"21"), None, True),
        (b"", (), True),
        *(
            (content(1) + torn + b"\n", (1,), True)
            for torn in (b"[" * 10**5, b'{"step": 2' + b"0" * 5000 + b"}", b'{"step": 2, "loss": NaN}', b"\xff")
        ),
    ],
)  # fmt: skip
def test_a_resumed_run_goes_on_with_the_lines_before_its_checkpoint(
    tmp_path: Path, left: bytes, kept: tuple[int, ...] | None, is_damaged: bool
) -> None:
    """Later ones are dropped. A log that is not as it was is kept beside, and that is said in a line."""
    path = tmp_path / "log.jsonl"
    mark = write(path, 1, 2, 3)
    path.write_bytes(left)
    said: list[str] = []
    log = StepLog(path, 3, mark, said.append)
    log.write(lines(4)[0])
    log.close()
    if kept is not None:
        assert read_log(path) == lines(*kept, 4)
        assert log.mark == write(tmp_path / "other", *kept, 4)
    if not is_damaged:
        assert (said, (tmp_path / DAMAGED).exists()) == ([], False)
        return
    assert (tmp_path / DAMAGED).read_bytes() == left
    assert said == [
        f"{path}: is not as the run had written it by step 3: it is kept as {DAMAGED}, and the run continues with its "
        f"{3 if kept is None else len(kept)} good lines up to that step"
    ]


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
    with refused("Out of range float values are not JSON compliant..."):
        log.write({"step": 1, "loss": float("nan")})
    assert path.read_bytes() == b'{"step": 1}\n'
    log.close()


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the curves that TensorBoard shows of a directory: steps and values, by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_a_line_can_be_seen_at_once(tmp_path: Path) -> None:
    """While the run goes on; what is no number is left out, and evaluations have curves of their own."""
    pytest.importorskip("tensorboard")
    log = TensorBoardLog(tmp_path / "new" / FOLDER, 0)
    line = {"step": 10, "loss": 2.5, "gradient_norm": None, "time": "2026-01-01"}
    log.write({**line, "evaluation": {"loss": 2.0, "accuracy": None}})
    assert curves(tmp_path / "new" / FOLDER) == {"loss": [(10, 2.5)], "evaluation/loss": [(10, 2.0)]}
    log.close()


def test_a_resumed_run_has_each_step_once(train: Training) -> None:
    """Though the first launch had gone two steps further than its last checkpoint; the same as the log."""
    pytest.importorskip("tensorboard")
    assert train(until=7, tensorboard=True)[0].log[-1]["step"] == 6
    done = train(tensorboard=True, resume=True)[0]
    assert done.error == ""
    shown = curves(train.folder / "run" / FOLDER)
    assert shown.keys() == done.log[0].keys() - {"step", "time"}
    for name, points in shown.items():
        assert points == [(line["step"], pytest.approx(line[name])) for line in done.log], name


def test_a_missing_tensorboard_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch is loaded; nothing is written."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = CliRunner().invoke(main, ["train", "--tensorboard", "--output", str(tmp_path / "run")])
    assert (done.exit_code, done.stderr) == (2, f"trainers: --tensorboard: {ADVICE}\n")
    assert list(tmp_path.iterdir()) == []
