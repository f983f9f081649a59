"""The output directory of a run: its checkpoints, and that one run at a time writes there."""

import errno
import fcntl
import math
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.processes import start_python
from tests.refusals import refused
from trainers.checkpoints.output import LOCK, CheckpointFolder, OutputLock, locked

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
