"""The output directory of a run: its checkpoints, and that one run at a time writes there."""

import errno
import fcntl
import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import refused
from trainers.checkpoints.output import LOCK, CheckpointFolder, OutputLock, locked

ROOT = Path(__file__).parents[3]
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


def test_a_second_process_is_told_who_has_it(tmp_path: Path) -> None:
    """Until that one is killed, though a child of it, such as a worker that loads data, outlives it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            child = int(other.stdout.readline())
            with (
                refused(
                    f"--output {tmp_path}: process {other.pid} on host {socket.gethostname()} is using it: "
                    f"wait until that run has ended, or give another --output"
                ),
                locked(tmp_path, print, wait_s=0.0),
            ):
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
        f"--output {tmp_path}: cannot be locked (No locks available): make sure that no other run writes there"
    ]
