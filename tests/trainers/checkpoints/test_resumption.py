"""Checkpoints that are whole, but not what a run needs: named, with the field, and the one before is used."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.points import Ran, config, run
from trainers.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from trainers.checkpoints.output_lock import OutputLock
from trainers.loop.config import TrainConfig

GONE = object()
PARAMS, STATE = ("optimizer_state", "param_groups", 0), ("optimizer_state", "state")

# Where in the checkpoint; what becomes of what is there; and what is then said.
FAULTS: list[tuple[tuple[str | int, ...], Callable[[Any], object], str]] = [
    (
        ("model_state", "middle.bias"), lambda bias: bias[:7],
        "model_state.middle.bias: is a tensor of float32 (7,), must be a tensor of float32 (20,)",
    ),
    (
        ("model_state", "first.weight"), lambda weight: weight.double(),
        "model_state.first.weight: is a tensor of float64 (60, 3), must be a tensor of float32 (60, 3)",
    ),
    (("model_state", "seen"), lambda _: GONE, "model_state: lacks seen"),
    (("model_state", "other"), lambda _: torch.zeros(1), "model_state: has other, which must not be there"),
    (("optimizer_state",), lambda _: {}, "optimizer_state: lacks state, param_groups"),
    (
        (*STATE, 2, "exp_avg"), lambda moment: moment.flatten(),
        "optimizer_state.state.2.exp_avg: is a tensor of float32 (180,), must be a tensor of float32 (60, 3)",
    ),
    ((*STATE, 2, "exp_avg_sq"), lambda _: GONE, "optimizer_state.state.2: lacks exp_avg_sq"),
    ((*STATE, 2), lambda _: GONE, "optimizer_state.state: has 5 entries, must have 6"),
    ((*STATE, 2), lambda _: [], "optimizer_state.state.2: is a list, must be a dict"),
    (STATE, lambda state: {9 - key: value for key, value in state.items()}, "optimizer_state.state.9: is of no param"),
    ((*PARAMS, "params", 0), lambda _: 1, "optimizer_state.param_groups[0].params: has other parameters than the task"),
    ((*PARAMS, "lr"), lambda _: GONE, "optimizer_state.param_groups[0]: lacks lr"),
    ((*PARAMS, "lr"), lambda _: "0.1", "optimizer_state.param_groups[0].lr: is a text, '0.1', must be a number"),
    (("random_states",), lambda states: states[:1], "random_states: has those of 1 ranks, must have 2 by config.train"),
    (
        ("random_states", 1, "numpy", "state", "pos"), lambda _: 4000,
        "random_states[1].numpy: is no state of that generator: the position 4000 is not in 0 to 624",
    ),
    (
        ("random_states", 0, "torch"), lambda state: state + 1,
        "random_states[0].torch: is no state of that generator: ",
    ),
    (
        ("random_states", 1, "python", "words"), lambda words: words[:-1],
        "random_states[1].python.words: is a tensor of int64 (624,), must be a tensor of int64 (625,)",
    ),
    (("config", "training"), lambda _: GONE, "is of no training session"),
    (("config", "training", "seed"), lambda _: GONE, "config.training: lacks seed"),
    (
        ("config", "training", "global_batch_size"), lambda _: "8",
        "config.training.global_batch_size: is a text, '8', must be a whole number",
    ),
    (("notes", "losses"), lambda _: GONE, "notes: lacks losses"),
    (("notes", "losses"), lambda _: ["1.0"], "notes.losses: is a list, must be a list of numbers"),
    (("notes", "skipped"), lambda _: 5, "notes.skipped: is 5, must be at most the step, 4"),
    (("notes", "log"), lambda _: None, "notes.log: is None, must be a dict"),
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


@pytest.mark.parametrize(("place", "edit", "fault"), FAULTS)
def test_a_field_that_does_not_fit_is_named_and_the_one_before_used(
    ranks: RankPool,
    tmp_path: Path,
    expected: str,
    place: tuple[str | int, ...],
    edit: Callable[[Any], object],
    fault: str,
) -> None:
    """On all ranks the same one, and the run ends as if nothing had been."""
    ranks.run(run, config(tmp_path, save_every=2), None, 5, num_ranks=2)
    change(tmp_path / "checkpoint-4.pt", place, edit)
    resumed = ranks.run(run, config(tmp_path, save_every=2, resume=True, steps=9), num_ranks=2)
    assert [each.error for each in resumed] == ["", ""]
    assert resumed[0].said[0].startswith(f"checkpoint {tmp_path / 'checkpoint-4.pt'}: {fault}")
    assert resumed[0].said[1:] == [f"resumed from {tmp_path / 'checkpoint-2.pt'}: 2 of 9 steps are done"]
    assert {each.fingerprint for each in resumed} == {expected}


def test_checkpoints_that_were_swapped_are_found_out(ranks: RankPool, tmp_path: Path, expected: str) -> None:
    """By the step that is in the file."""
    ranks.run(run, config(tmp_path, save_every=2, keep=3), None, 7, num_ranks=2)
    first, second, third = (tmp_path / f"checkpoint-{step}.pt" for step in (6, 4, 2))
    first.rename(tmp_path / "kept")
    second.rename(first)
    (tmp_path / "kept").rename(second)
    resumed = ranks.run(run, config(tmp_path, save_every=2, resume=True, steps=9), num_ranks=2)
    assert resumed[0].said == [
        f"checkpoint {first}: step: is 4, must be 6 by the name of the file",
        f"checkpoint {second}: step: is 6, must be 4 by the name of the file",
        f"resumed from {third}: 2 of 9 steps are done",
    ]
    assert {each.fingerprint for each in resumed} == {expected}


@pytest.mark.parametrize("optimizer", ["SGD", "ASGD", "Adagrad"])
@pytest.mark.parametrize("strategy", ["ring", "zero1"])
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
    lock = OutputLock(tmp_path)
    assert lock.try_take()
    lock.sign()
    refusal = lock.refusal()
    (tmp_path / ".checkpoint-4.pt.7.tmp").write_text("half a checkpoint, of the run that has it")
    try:
        results = ranks.run(run_without_patience, config(tmp_path), num_ranks=2)
    finally:
        lock.release()
    for each in results:
        assert each.error == f"ValueError: {refusal}"
    assert (tmp_path / ".checkpoint-4.pt.7.tmp").exists()
    assert ranks.run(run, config(tmp_path), num_ranks=2)[0].error == ""


def test_a_log_that_lost_lines_is_told(ranks: RankPool, tmp_path: Path, expected: str) -> None:
    """The run itself is the same."""
    ranks.run(run, config(tmp_path), None, 5, num_ranks=2)
    log = tmp_path / "log.jsonl"
    damaged = b"".join(log.read_bytes().splitlines(keepends=True)[1:])
    log.write_bytes(damaged)
    resumed = ranks.run(run, config(tmp_path, resume=True, steps=9), num_ranks=2)
    assert resumed[0].said[1] == (
        f"{log}: has 3 good lines of the 4 that the run had written by then: it is kept as log.jsonl.damaged, and the "
        f"run goes on with the 3 good lines up to step 4"
    )
    assert (tmp_path / "log.jsonl.damaged").read_bytes() == damaged
    assert {each.fingerprint for each in resumed} == {expected}
