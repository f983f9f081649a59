"""Checkpoints that are damaged, or not what a run needs: named, with what is wrong, and the one before is used."""

import os
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion

from tests.ranks import RankPool
from tests.trainers.points import NUM_STEPS, Ran, Training, run
from trainers.checkpoints.checkpoint import Checkpoint, checkpoint_of, load_checkpoint, save_checkpoint
from trainers.checkpoints.output import OutputLock
from trainers.loop.config import TrainConfig

POWER, DILOCO = "powersgd/1", "diloco/5"
Runs = dict[str, tuple[Path, Ran]]


def edit(change: Callable[[Checkpoint], object]) -> Callable[[Path], None]:
    """Return a function that changes a checkpoint in its file, with right checksums."""

    def damage(path: Path) -> None:
        change(checkpoint := load_checkpoint(path))
        save_checkpoint(path, checkpoint)

    return damage


def shorten(holder: Any, key: str | int) -> None:
    """Keep only the first row of a tensor."""
    holder[key] = holder[key][:1]


def flip(path: Path) -> None:
    """Change one bit of the weights."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def swap(path: Path) -> None:
    """Give a checkpoint the name of a later one."""
    shutil.copyfile(path.with_name("checkpoint-2.pt"), path)


FAULTS: list[tuple[str, Callable[[Path], None]]] = [
    (POWER, flip),
    (POWER, swap),
    (POWER, edit(lambda saved: saved.config.pop("training"))),
    (POWER, edit(lambda saved: shorten(saved.model_state, "middle.bias"))),
    (POWER, edit(lambda saved: saved.optimizer_state["param_groups"][0].pop("lr"))),
    (POWER, edit(lambda saved: shorten(saved.optimizer_state["state"][2], "exp_avg"))),
    (POWER, edit(lambda saved: saved.random_states[1]["numpy"]["state"].update(pos=4000))),
    (POWER, edit(lambda saved: shorten(saved.strategy_states[1]["errors"], 0))),
    (POWER, edit(lambda saved: saved.notes.pop("losses"))),
    (DILOCO, edit(lambda saved: shorten(saved.strategy_states[1]["optimizer"]["state"][2], "exp_avg"))),
    (DILOCO, edit(lambda saved: saved.strategy_states[1].update(taken=7))),
]


@pytest.fixture(scope="module")
def whole_runs(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """For each strategy: the directory that a run left after its fifth step, and a run that nobody disturbed."""
    train, runs = Training(ranks, tmp_path_factory.mktemp("interrupted")), {}
    for strategy in (POWER, DILOCO):
        name = strategy.partition("/")[0]
        train(name, until=5, strategy=strategy, save_every=2)
        runs[strategy] = train.folder / name, train("whole " + name, strategy=strategy, steps=9)[0]
    return runs


@pytest.fixture
def resume(train: Training, whole_runs: Runs, snapshot: SnapshotAssertion) -> Callable[..., None]:
    """Damages a copy of an interrupted run, resumes it, and checks that all ranks go on from step 2 to the same end."""

    def resumed(strategy: str, damage: Callable[[Path], None], **settings: Any) -> None:
        left, expected = whole_runs[strategy]
        folder = shutil.copytree(left, train.folder / "run")
        damage(folder / "checkpoint-4.pt")
        first, second = train(strategy=strategy, resume=True, steps=9, **settings)
        assert (first.error, second.error) == ("", "")
        assert first.said[0].partition(" in loading ")[0] == snapshot
        assert first.said[1:] == ["resumed from FOLDER/run/checkpoint-2.pt: 2 of 9 steps are done"]
        assert first.losses == expected.losses
        assert first.fingerprint == second.fingerprint == expected.fingerprint

    return resumed


@pytest.mark.parametrize(("strategy", "damage"), FAULTS)
def test_a_bad_checkpoint_is_named_and_the_one_before_used(
    resume: Callable[..., None], strategy: str, damage: Callable[[Path], None]
) -> None:
    """By all ranks, also where it is the part of one rank; and the run ends as if nothing had been."""
    resume(strategy, damage)


def run_that_cannot_read(group: dist.ProcessGroup, config: TrainConfig, *_: object) -> Ran:
    """A run of which rank 1 cannot read the checkpoint after step 4."""

    def read(content: bytearray, path: str | Path) -> Checkpoint:
        if Path(path).name == "checkpoint-4.pt" and group.rank() == 1:
            raise ValueError(f"checkpoint {path}: cannot be read in bounded memory")
        return checkpoint_of(content, path)

    with mock.patch("trainers.checkpoints.manager.checkpoint_of", read):
        return run(group, config)


def test_one_that_a_rank_cannot_read_is_passed_over_by_all(resume: Callable[..., None]) -> None:
    """Though rank 0, which has sent it, can."""
    resume(POWER, lambda _: None, run=run_that_cannot_read)


def test_without_any_good_checkpoint_all_ranks_refuse(train: Training) -> None:
    """Rather than to begin anew over what may be worth saving; where there is none at all, they begin."""
    train(until=9)
    for path in (train.folder / "run").glob("*.pt"):
        flip(path)
    message = "ValueError: `resume`: none of the checkpoints in FOLDER/run can be read; give another `output`"
    assert [each.error for each in train(resume=True)] == [message] * 2
    begun = train("new", resume=True)[0]
    assert begun.said == ["no checkpoint in FOLDER/new yet: starting with the first step"]
    assert len(begun.losses) == NUM_STEPS


@pytest.mark.parametrize(("optimizer", "strategy"), [("SGD", "ring"), ("ASGD", "zero1"), ("Adagrad", "ring")])
def test_other_optimizers_can_resume(train: Training, optimizer: str, strategy: str) -> None:
    """One has no state, one has a form that is not known beforehand, and one has its state from the beginning."""
    training = partial(train, options={"kind": optimizer}, steps=9, strategy=strategy)
    whole = training("whole")[0]
    training("parts", until=5)
    resumed = training("parts", resume=True)[0]
    assert (resumed.error, resumed.fingerprint) == ("", whole.fingerprint)


def run_without_patience(group: dist.ProcessGroup, config: TrainConfig, *_: object) -> Ran:
    """A run that soon takes a directory for one that another run will go on to use."""
    with mock.patch("trainers.checkpoints.manager.WAIT_S", 0.3):
        return run(group, config)


def test_a_directory_that_another_run_uses_is_refused_by_all(train: Training) -> None:
    """In one line that says who has it, and nothing there is touched; nor when that run has ended."""
    lock = OutputLock(folder := train.folder / "run", print)
    assert lock.wait(0.0)
    unfinished = folder / ".checkpoint-4.pt.7.tmp"
    unfinished.write_text("half a checkpoint, of the run that has it")
    try:
        results = train(run=run_without_patience)
    finally:
        lock.release()
    who = f"process {os.getpid()} on host {socket.gethostname()}"
    assert all(each.error.startswith(f"ValueError: `output` FOLDER/run: {who} is using it: wait") for each in results)
    assert unfinished.exists()
    assert train()[0].error == ""
    left = {path.name: path.read_bytes() for path in folder.iterdir()}
    for each in train(seed=5):
        assert "`output` FOLDER/run: there is checkpoint-12.pt of a run already: continue it with" in each.error
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == left


def test_a_log_that_lost_lines_is_told(train: Training, whole_runs: Runs) -> None:
    """The run itself is the same."""
    folder = shutil.copytree(whole_runs[POWER][0], train.folder / "run")
    log = folder / "log.jsonl"
    damaged = b"".join(log.read_bytes().splitlines(keepends=True)[1:])
    log.write_bytes(damaged)
    resumed = train(strategy=POWER, resume=True, steps=9)
    assert (
        resumed[0]
        .said[1]
        .startswith("FOLDER/run/log.jsonl: is not as the run had written it by step 4: it is kept as ")
    )
    assert (folder / "log.jsonl.damaged").read_bytes() == damaged
    assert {each.fingerprint for each in resumed} == {whole_runs[POWER][1].fingerprint}
