"""The log of a run: lines that come whole, and go when the run goes back behind them."""

import os
from pathlib import Path

import pytest

from trainers.session.step_log import StepLog, read_log


def lines(*steps: int) -> list[dict[str, int]]:
    """What is written for these steps."""
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
    """Later lines, a torn one, and what is no line of a log are dropped; nothing else is left in the directory."""
    path = tmp_path / "log.jsonl"
    write(path, 0, 1, 2, 3, 4)
    with path.open("a") as file:
        file.write('[1]\n{"loss": 3}\nnonsense\n{"step": 2')
    write(path, 2, 3, 5)
    assert read_log(path) == lines(1, 2, 3, 5)
    assert list(tmp_path.iterdir()) == [path]


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
