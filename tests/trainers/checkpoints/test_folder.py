"""The checkpoints of a run: found by their steps, the newest kept."""

from pathlib import Path

import pytest

from trainers.checkpoints.output import CheckpointFolder


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
