"""The output directory of a run: its checkpoints, that one run at a time writes there, its log, and TensorBoard."""

import errno
import fcntl
import importlib.util
import json
import math
import os
import resource
import signal
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.processes import limited, start_python
from tests.refusals import refused
from tests.trainers.points import Training
from trainers.checkpoints.output import (
    DAMAGED,
    FOLDER,
    LOCK,
    CheckpointFolder,
    Mark,
    OutputLock,
    StepLog,
    TensorBoardLog,
    locked,
    read_log,
)
from trainers.cli.group import main

HOLDER = """
import os, sys, time
from pathlib import Path
from trainers.checkpoints.output import OutputLock
assert OutputLock(Path(sys.argv[1]), print).wait(0.0)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


def filled(path: Path, *names: str) -> CheckpointFolder:
    """A directory with files of these names."""
    for name in names:
        (path / name).touch()
    return CheckpointFolder(path)


def test_the_newest_comes_first(tmp_path: Path) -> None:
    """By number, not by name; what only looks like a checkpoint is none; a missing directory has none."""
    others = ("checkpoint-.pt", "checkpoint-07.pt", "checkpoint-8.pt.old", ".checkpoint-9.pt.12.tmp", "checkpoint.pt")
    folder = filled(tmp_path, "checkpoint-9.pt", "checkpoint-10.pt", "checkpoint-0.pt", *others)
    assert folder.newest_first() == [tmp_path / f"checkpoint-{step}.pt" for step in (10, 9, 0)]
    assert CheckpointFolder(tmp_path / "new").newest_first() == []


@pytest.mark.parametrize(("keep", "kept"), [(1, [50, 30]), (2, [50, 30, 20]), (9, [50, 30, 20, 10])])
def test_old_ones_go(tmp_path: Path, keep: int, kept: list[int]) -> None:
    """Of those up to the step that was just saved; a later one, of which nothing good is known, counts for none."""
    folder = filled(tmp_path, *(f"checkpoint-{step}.pt" for step in (10, 20, 30, 50)), "log.jsonl")
    folder.prune(30, keep)
    assert [CheckpointFolder.step_of(path) for path in folder.newest_first()] == kept
    assert (tmp_path / "log.jsonl").exists()


def test_what_a_kill_has_left_is_cleared(tmp_path: Path) -> None:
    """Files half-written, and nothing else."""
    folder = filled(tmp_path, "checkpoint-4.pt", ".checkpoint-8.pt.123.tmp", ".result.json.7.tmp", ".mine.tmp")
    folder.clear_unfinished()
    assert {path.name for path in tmp_path.iterdir()} == {".mine.tmp", "checkpoint-4.pt"}


def test_a_second_process_is_told_who_has_it(tmp_path: Path) -> None:
    """Until that one is killed, though a child of it, such as a worker that loads data, outlives it."""
    with start_python("-c", HOLDER, str(tmp_path)) as other:
        try:
            child = int(other.stdout.readline())  # type: ignore[union-attr]
            who = f"process {other.pid} on host {socket.gethostname()}"
            rule = "wait until that run has ended, or give another `output`"
            with refused(f"`output` {tmp_path}: {who} is using it: {rule}"), locked(tmp_path, print, wait_s=0.0):
                pass
        finally:
            other.kill()
            other.stdout.close()  # type: ignore[union-attr]
    try:
        with locked(tmp_path, print):
            pass
        assert list(tmp_path.iterdir()) == []
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lock_that_its_holder_removes_meanwhile_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has opened the file before that would lock one that nobody else sees."""
    lockf = fcntl.lockf

    def after_release(descriptor: int, operation: int) -> None:
        (tmp_path / LOCK).unlink()
        lockf(descriptor, operation)

    lock = OutputLock(tmp_path, print)
    monkeypatch.setattr(fcntl, "lockf", after_release)
    assert not lock.wait(math.inf)
    monkeypatch.undo()
    assert lock.wait(math.inf)
    assert (tmp_path / LOCK).exists()
    lock.release()


def test_without_locks_it_is_said_once_and_done_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that has none."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    said: list[str] = []
    with locked(tmp_path, said.append):
        pass
    assert said == [
        f"`output` {tmp_path}: cannot be locked (No locks available): make sure that no other run writes there"
    ]


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
    """The log of an earlier run, if there is one, is overwritten."""
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


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    """A disk that is full after half a line: OSError names the file, and its lines are whole."""
    log = StepLog(path := tmp_path / "log.jsonl")
    log.write({"step": 1})
    with limited(resource.RLIMIT_FSIZE, 17), pytest.raises(OSError, match=r"File too large: '.*log.jsonl'"):
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
