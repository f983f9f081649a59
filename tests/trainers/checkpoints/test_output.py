"""The output directory of a run: its checkpoints, and that one run at a time writes there."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.checkpoints.output import LOCK, CheckpointFolder, OutputLock, locked

ROOT = Path(__file__).parents[3]
HOLDER = """
import os, sys, time
from pathlib import Path
from trainers.checkpoints.output import OutputLock
lock = OutputLock(Path(sys.argv[1]))
assert lock.try_take()
lock.sign()
if sys.argv[2] == "fork" and (child := os.fork()) == 0:
    time.sleep(600)
print(child if sys.argv[2] == "fork" else "held", flush=True)
time.sleep(600)
"""


def filled(path: Path, *names: str) -> CheckpointFolder:
    """A directory with files of these names."""
    for name in names:
        (path / name).write_text(name)
    return CheckpointFolder(path)


def left(path: Path) -> list[str]:
    """The names of all files that are there now."""
    return sorted(each.name for each in path.iterdir())


def test_the_newest_comes_first(tmp_path: Path) -> None:
    """By number, not by name; what only looks like a checkpoint is none."""
    others = ("checkpoint-.pt", "checkpoint-07.pt", "checkpoint-8.pt.old", ".checkpoint-9.pt.12.tmp", "checkpoint.pt")
    folder = filled(tmp_path, "checkpoint-9.pt", "checkpoint-10.pt", "checkpoint-0.pt", *others)
    assert [path.name for path in folder.newest_first()] == ["checkpoint-10.pt", "checkpoint-9.pt", "checkpoint-0.pt"]
    assert folder.path(10) == tmp_path / "checkpoint-10.pt"


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    """A directory that does not exist has no checkpoints."""
    assert CheckpointFolder(tmp_path / "new").newest_first() == []


@pytest.mark.parametrize(("keep", "kept"), [(1, [30, 50]), (2, [20, 30, 50]), (9, [10, 20, 30, 50])])
def test_old_ones_go(tmp_path: Path, keep: int, kept: list[int]) -> None:
    """Of those up to the step that was just saved; a later one, of which nothing good is known, counts for none."""
    folder = filled(tmp_path, *(f"checkpoint-{step}.pt" for step in (10, 20, 30, 50)), "log.jsonl")
    folder.prune(30, keep)
    assert left(tmp_path) == [*(f"checkpoint-{step}.pt" for step in kept), "log.jsonl"]


def test_what_a_kill_has_left_is_cleared(tmp_path: Path) -> None:
    """Files half-written, and nothing else."""
    folder = filled(tmp_path, "checkpoint-4.pt", ".checkpoint-8.pt.123.tmp", ".result.json.7.tmp", ".mine.tmp")
    folder.clear_unfinished()
    assert left(tmp_path) == [".mine.tmp", "checkpoint-4.pt"]


def holder(folder: Path, how: str) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLDER, str(folder), how]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_second_process_is_told_who_has_it(tmp_path: Path) -> None:
    """Until that one is killed: then the lock is free, whatever the file says."""
    with holder(tmp_path, "plain") as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        lock = OutputLock(tmp_path)
        try:
            assert not lock.try_take()
            assert lock.refusal() == (
                f"--output {tmp_path}: process {other.pid} on host {socket.gethostname()} is using it: "
                f"wait until that run has ended, or give another --output"
            )
            with pytest.raises(ValueError, match=f"process {other.pid} "), locked(tmp_path, print, wait_s=0.0):
                pass
        finally:
            other.kill()
    assert lock.try_take()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_hold_it(tmp_path: Path) -> None:
    """Such as a worker that loads data, and outlives its parent."""
    with holder(tmp_path, "fork") as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        other.kill()
    try:
        with locked(tmp_path, print):  # which waits a little: the child lets go when it first runs
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lock_that_its_holder_removes_meanwhile_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has opened the file before that would lock one that nobody else sees."""
    first, second = OutputLock(tmp_path), OutputLock(tmp_path)
    assert first.try_take()
    flock = fcntl.flock

    def after_release(descriptor: int, operation: int) -> None:
        first.release()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", after_release)
    assert second.try_take()
    monkeypatch.undo()
    assert not OutputLock(tmp_path).try_take()
    second.release()


def test_without_locks_it_is_said_once_and_done_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that has none."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said: list[str] = []
    with locked(tmp_path, said.append):
        pass
    assert said == [
        f"--output {tmp_path}: cannot be locked (No locks available): make sure that no other run writes there"
    ]


def test_a_lock_that_says_nothing(tmp_path: Path) -> None:
    """Its holder found no room on the disk, say."""
    (tmp_path / LOCK).write_bytes(b"\xff")
    assert OutputLock(tmp_path).holder() == "another process"
