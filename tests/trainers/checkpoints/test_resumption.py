"""Checkpoints that are whole, but not what a run needs: named, with what is wrong, and the one before is used."""

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.points import Ran, config, run
from trainers.checkpoints.checkpoint import Checkpoint, checkpoint_of, load_checkpoint, save_checkpoint
from trainers.checkpoints.output import OutputLock
from trainers.loop.config import TrainConfig

GONE = object()

POWER, DILOCO = "powersgd/1", "diloco/5"

# The strategy; where in the checkpoint; what becomes of what is there; and what is then said.
FAULTS: list[tuple[str, tuple[str | int, ...], Callable[[Any], object], str]] = [
    (POWER, ("model_state", "middle.bias"), lambda bias: bias[:7], "does not fit the task: Error(s) in loading"),
    (
        POWER, ("optimizer_state", "param_groups", 0, "lr"), lambda _: GONE,
        "does not fit the task: its optimizer has other options: lr",
    ),
    (
        POWER, ("optimizer_state", "state", 2, "exp_avg"), lambda moment: moment[:1],
        "does not fit the task: its optimizer state 2, exp_avg: is of shape (1, 3), must be (60, 3)",
    ),
    (
        POWER, ("random_states", 1, "numpy", "state", "pos"), lambda _: 4000,
        "rank 1: does not fit the task: random state of NumPy: the position 4000 is not in 0 to 624",
    ),
    (
        POWER, ("strategy_states", 1, "errors", 0), lambda error: error[:1],
        "rank 1: does not fit the task: a saved tensor has shape (1, 3): must have shape (60, 3)",
    ),
    (POWER, ("notes", "losses"), lambda _: GONE, "does not fit the task: 'losses'"),
    (
        DILOCO, ("strategy_states", 1, "optimizer", "state", 2, "exp_avg"), lambda moment: moment[:1],
        "rank 1: does not fit the task: its optimizer state 2, exp_avg: is of shape (1, 3), must be (60, 3)",
    ),
    (
        DILOCO, ("strategy_states", 1, "taken"), lambda _: 7,
        "rank 0: does not fit the task: the saved number of steps since the last average is 4: must be from 0 to 4 and "
        "the same on all ranks",
    ),
]  # fmt: skip


def change(path: Path, place: tuple[str | int, ...], edit: Callable[[Any], object]) -> None:
    """Write the checkpoint anew, with right checksums."""
    checkpoint = load_checkpoint(path)
    parts: Any = {part.name: getattr(checkpoint, part.name) for part in fields(checkpoint)}
    holder = parts
    for name in place[:-1]:
        holder = holder[name]
    value = edit(holder.get(place[-1]) if isinstance(holder, dict) else holder[place[-1]])
    if value is GONE:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    save_checkpoint(path, replace(checkpoint, **parts))


@pytest.fixture(scope="module")
def expected(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fingerprint of a run that nobody disturbed."""
    whole = config(tmp_path_factory.mktemp("whole"), steps=9)
    mark: str = ranks.run(run, whole, num_ranks=2)[0].fingerprint
    return mark


@pytest.fixture(scope="module")
def interrupted(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """For each strategy: what a run left that ended after step 5, and the fingerprint of one that nobody disturbed."""
    runs = {}
    for strategy in (POWER, DILOCO):
        folder = tmp_path_factory.mktemp("interrupted")
        ranks.run(run, config(folder / "parts", strategy=strategy, save_every=2), None, 5, num_ranks=2)
        whole = ranks.run(run, config(folder / "whole", strategy=strategy, steps=9), num_ranks=2)[0]
        runs[strategy] = folder / "parts", whole.fingerprint
    return runs


def assert_resumed(resumed: list[Ran], folder: Path, expected: str, *faults: str) -> None:
    """All ranks continue from step 2, after rank 0 has said these faults; the run ends as if nothing had been."""
    assert [each.error for each in resumed] == ["", ""]
    *said, last = resumed[0].said
    assert [line[: len(fault)] for line, fault in zip(said, faults, strict=True)] == [*faults]
    assert last == f"resumed from {folder / 'checkpoint-2.pt'}: 2 of 9 steps are done"
    assert {each.fingerprint for each in resumed} == {expected}


@pytest.mark.parametrize(("strategy", "place", "edit", "fault"), FAULTS)
def test_what_does_not_fit_is_said_and_the_one_before_used(
    ranks: RankPool,
    tmp_path: Path,
    interrupted: dict[str, tuple[Path, str]],
    strategy: str,
    place: tuple[str | int, ...],
    edit: Callable[[Any], object],
    fault: str,
) -> None:
    """By all ranks, also where it is the part of one rank; and the run ends as if nothing had been."""
    left, expected = interrupted[strategy]
    parts = shutil.copytree(left, tmp_path / "parts")
    change(parts / "checkpoint-4.pt", place, edit)
    resumed = ranks.run(run, config(parts, strategy=strategy, resume=True, steps=9), num_ranks=2)
    assert_resumed(resumed, parts, expected, f"checkpoint {parts / 'checkpoint-4.pt'}: {fault}")


def run_that_cannot_read(group: dist.ProcessGroup, config: TrainConfig) -> Ran:
    """A run of which rank 1 cannot read the checkpoint after step 4."""

    def read(content: bytearray, path: str | Path) -> Checkpoint:
        if Path(path).name == "checkpoint-4.pt" and group.rank() == 1:
            raise ValueError(f"checkpoint {path}: cannot be read in bounded memory")
        return checkpoint_of(content, path)

    with mock.patch("trainers.checkpoints.resumption.checkpoint_of", read):
        return run(group, config)


def test_one_that_a_rank_cannot_read_is_passed_over_by_all(
    ranks: RankPool, tmp_path: Path, interrupted: dict[str, tuple[Path, str]]
) -> None:
    """Though rank 0, which has sent it, can."""
    left, expected = interrupted[POWER]
    parts = shutil.copytree(left, tmp_path / "parts")
    resumed = ranks.run(run_that_cannot_read, config(parts, strategy=POWER, resume=True, steps=9), num_ranks=2)
    fault = f"rank 1: checkpoint {parts / 'checkpoint-4.pt'}: cannot be read in bounded memory"
    assert_resumed(resumed, parts, expected, fault)


def test_of_no_training_session_is_passed_over(ranks: RankPool, tmp_path: Path, expected: str) -> None:
    """As that of the strategy comparison; the one before is used."""
    ranks.run(run, config(tmp_path, save_every=2), None, 3, num_ranks=2)
    save_checkpoint(tmp_path / "checkpoint-4.pt", Checkpoint({}, {}, {"strategy": "ring", "model": {}}, 4))
    resumed = ranks.run(run, config(tmp_path, resume=True, steps=9), num_ranks=2)
    fault = f"checkpoint {tmp_path / 'checkpoint-4.pt'}: is not from a training session"
    assert_resumed(resumed, tmp_path, expected, fault)


def test_checkpoints_that_were_swapped_are_found_out(ranks: RankPool, tmp_path: Path, expected: str) -> None:
    """By the step that is in the file."""
    ranks.run(run, config(tmp_path, save_every=2, keep=3), None, 7, num_ranks=2)
    first, second = (tmp_path / f"checkpoint-{step}.pt" for step in (6, 4))
    first.rename(tmp_path / "kept")
    second.rename(first)
    (tmp_path / "kept").rename(second)
    resumed = ranks.run(run, config(tmp_path, save_every=2, resume=True, steps=9), num_ranks=2)
    swapped = (first, 4), (second, 6)
    told = (f"checkpoint {path}: step: is {n}, must be {10 - n} by the name of the file" for path, n in swapped)
    assert_resumed(resumed, tmp_path, expected, *told)


@pytest.mark.parametrize(("optimizer", "strategy"), [("SGD", "ring"), ("ASGD", "zero1"), ("Adagrad", "ring")])
def test_other_optimizers_can_resume(ranks: RankPool, tmp_path: Path, optimizer: str, strategy: str) -> None:
    """One has no state, one has a form that is not known beforehand, and one has its state from the beginning."""
    options = {"kind": optimizer}
    whole = ranks.run(run, config(tmp_path / "whole", steps=9, strategy=strategy), options, num_ranks=2)[0]
    parts = config(tmp_path / "parts", steps=9, strategy=strategy)
    ranks.run(run, parts, options, 5, num_ranks=2)
    resumed = ranks.run(run, replace(parts, resume=True), options, num_ranks=2)[0]
    assert (resumed.error, resumed.fingerprint) == ("", whole.fingerprint)


def run_without_patience(group: dist.ProcessGroup, config: TrainConfig) -> Ran:
    """A run that soon takes a directory for one that another run will go on to use."""
    with mock.patch("trainers.checkpoints.manager.WAIT_S", 0.3):
        return run(group, config)


def test_a_directory_that_another_run_uses_is_refused_by_all(ranks: RankPool, tmp_path: Path) -> None:
    """In one line that says who has it, and nothing there is touched."""
    lock = OutputLock(tmp_path, print)
    assert lock.wait(0.0)
    refusal = f"--output {tmp_path}: process {os.getpid()} on host {socket.gethostname()} is using it: wait until"
    (tmp_path / ".checkpoint-4.pt.7.tmp").write_text("half a checkpoint, of the run that has it")
    try:
        results = ranks.run(run_without_patience, config(tmp_path), num_ranks=2)
    finally:
        lock.release()
    for each in results:
        assert each.error.startswith(f"ValueError: {refusal}")
    assert (tmp_path / ".checkpoint-4.pt.7.tmp").exists()
    assert ranks.run(run, config(tmp_path), num_ranks=2)[0].error == ""


def test_a_run_that_has_waited_for_another_does_not_replace_it(ranks: RankPool, tmp_path: Path) -> None:
    """Whether it asks before the other one has begun, or after it has ended; all ranks say what to do."""
    ranks.run(run, config(tmp_path), num_ranks=2)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for each in ranks.run(run, config(tmp_path, seed=5), num_ranks=2):
        assert f"--output {tmp_path}: there is checkpoint-12.pt of a run already: continue it with" in each.error
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left


def test_a_log_that_lost_lines_is_told(ranks: RankPool, tmp_path: Path, expected: str) -> None:
    """The run itself is the same."""
    ranks.run(run, config(tmp_path), None, 5, num_ranks=2)
    log = tmp_path / "log.jsonl"
    damaged = b"".join(log.read_bytes().splitlines(keepends=True)[1:])
    log.write_bytes(damaged)
    resumed = ranks.run(run, config(tmp_path, resume=True, steps=9), num_ranks=2)
    assert resumed[0].said[1].startswith(f"{log}: is not as the run had written it by step 4: it is kept as ")
    assert (tmp_path / "log.jsonl.damaged").read_bytes() == damaged
    assert {each.fingerprint for each in resumed} == {expected}
