"""A trainer computes what its task and configuration say: on any number of ranks, interrupted or not."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.points import BATCH_SIZE, NUM_SAMPLES, NUM_STEPS, Ran, config, run
from trainers.checkpoints.checkpoint import load_checkpoint
from trainers.loop.batches import Batches
from trainers.loop.trainer import Trainer
from trainers.strategy_names import STRATEGY_INFOS

NO_DROPOUT = {"dropout": 0.0}  # ranks draw other numbers than one process does


QUICK = ("ring", "ddp", "zero1", "zero2/0.00002", "zero3", "fsdp", "bucketed", "diloco/5", "powersgd/1")
# Not "none", whose ranks have models of their own. Those on our backend are tried where ranks are processes.
TRIED = {"none", *(name.partition("/")[0] for name in QUICK)}
OTHERS = sorted(name for name, info in STRATEGY_INFOS.items() if not info.backend and name not in TRIED)


@pytest.mark.parametrize("strategy", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_an_interrupted_run_equals_the_uninterrupted_one(ranks: RankPool, tmp_path: Path, strategy: str) -> None:
    """Bit for bit, losses and model, with dropout, a changing buffer, ranks without samples and lines between saves.

    Also where the ranks hold other parameters when a checkpoint is written; and in the end they do not.
    """
    whole, parts = (
        config(tmp_path / name, strategy=strategy, clip_norm=2.0, log_every=3) for name in ("whole", "parts")
    )
    expected = ranks.run(run, whole, num_ranks=3)[0]
    assert expected.error == ""
    assert [line["step"] for line in expected.log] == [3, 6, 9, 12]
    interrupted = ranks.run(run, parts, None, 7, num_ranks=3)[0]
    assert [line["step"] for line in interrupted.log] == [3, 6]
    resumed = ranks.run(run, replace(parts, resume=True), num_ranks=3)
    assert resumed[0].said == [f"resumed from {parts.output / 'checkpoint-4.pt'}: 4 of 12 steps are done"]
    assert resumed[0].losses == expected.losses
    assert {each.fingerprint for each in resumed} == {expected.fingerprint}
    assert resumed[0].seen == expected.seen != 0
    assert len(set(expected.losses)) == 4


def test_the_number_of_ranks_and_parts_makes_no_difference(ranks: RankPool, tmp_path: Path) -> None:
    """Losses are those of one process with the whole batch, but for rounding; on all ranks the same."""
    alone = ranks.run(run, config(tmp_path / "alone"), NO_DROPOUT, num_ranks=1)[0]
    assert len(alone.losses) == NUM_STEPS
    for num_ranks, accumulate in ((1, 3), (3, 2), (5, 4)):
        asked = config(tmp_path / f"shared{num_ranks}", accumulate=accumulate)
        shared = ranks.run(run, asked, NO_DROPOUT, num_ranks=num_ranks)
        assert shared[0].losses == pytest.approx(alone.losses, rel=1e-4, abs=1e-6)
        assert len({each.fingerprint for each in shared}) == 1


def test_more_ranks_may_go_on_where_fewer_ended(ranks: RankPool, tmp_path: Path) -> None:
    """The batches are the same; rank 0 says that losses agree to rounding, which they do."""
    expected = ranks.run(run, config(tmp_path / "whole"), NO_DROPOUT, num_ranks=2)[0]
    parts = config(tmp_path / "parts")
    ranks.run(run, parts, NO_DROPOUT, 6, num_ranks=2)
    resumed = ranks.run(run, replace(parts, resume=True), NO_DROPOUT, num_ranks=3)
    assert resumed[0].losses == pytest.approx(expected.losses, rel=1e-4, abs=1e-6)
    assert "it is of 2 ranks, now 3" in resumed[0].said[1]
    assert resumed[1].said == []


def test_another_strategy_may_go_on(ranks: RankPool, tmp_path: Path) -> None:
    """If it keeps the optimizer's state in the same form; else it is refused by name, on every rank."""
    expected = ranks.run(run, config(tmp_path / "whole"), num_ranks=2)[0]
    parts = config(tmp_path / "parts")
    ranks.run(run, parts, None, 6, num_ranks=2)
    for each in ranks.run(run, replace(parts, resume=True, strategy="zero1"), num_ranks=2):
        assert "is of the strategy ring, whose optimizer state does not fit zero1" in each.error
    resumed = ranks.run(run, replace(parts, resume=True, strategy="ddp"), num_ranks=2)[0]
    assert resumed.losses == pytest.approx(expected.losses, rel=1e-4, abs=1e-6)
    assert resumed.said[1] == "it is of the strategy ring, now ddp: losses will agree to rounding"


def test_what_each_rank_keeps_fits_no_other_run(ranks: RankPool, tmp_path: Path) -> None:
    """Neither another strategy nor another number of ranks."""
    asked = config(tmp_path, strategy="diloco/5", steps=6)
    ranks.run(run, asked, None, 5, num_ranks=2)
    for change, num_ranks in (({"strategy": "ring"}, 2), ({"strategy": "diloco/4"}, 2), ({}, 3)):
        strategy = change.get("strategy", "diloco/5")
        for each in ranks.run(run, replace(asked, resume=True, **change), num_ranks=num_ranks):
            assert f"is of the strategy diloco/5 on 2 ranks, now {strategy} on {num_ranks} ranks, and " in each.error


OF_OTHER_RUNS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"seed": 4}, {}, "seed 3, now 4"),
    ({"batch_size": 5, "clip_norm": 1.0}, {}, "global_batch_size 8, now 10; clip_norm None, now 1.0"),
    ({}, NO_DROPOUT, "dropout 0.5, now 0.0"),
    ({"amp": "bfloat16"}, {}, "amp None, now bfloat16"),
    ({"lr_schedule": "cosine"}, {}, "lr_schedule constant, now cosine; schedule_steps None, now 12"),
]


def test_another_run_is_refused(ranks: RankPool, tmp_path: Path) -> None:
    """On every rank, with all that differs, and what to do."""
    ranks.run(run, config(tmp_path), None, 5, num_ranks=2)
    for change, options, differing in OF_OTHER_RUNS:
        for each in ranks.run(run, config(tmp_path, resume=True, **change), options, num_ranks=2):
            assert each.error == (
                f"ValueError: checkpoint {tmp_path / 'checkpoint-4.pt'}: is of a run with {differing}: "
                f"resume with the original settings, or give another --output"
            )


def test_a_run_that_is_over_is_not_trained_on(ranks: RankPool, tmp_path: Path) -> None:
    """Resumed once more it changes nothing; with more epochs it goes on."""
    first = ranks.run(run, config(tmp_path), num_ranks=2)[0]
    again = ranks.run(run, config(tmp_path, resume=True), num_ranks=2)[0]
    assert (again.losses, again.fingerprint) == (first.losses, first.fingerprint)
    longer = ranks.run(run, config(tmp_path, resume=True, epochs=4), num_ranks=2)[0]
    assert (longer.losses[:NUM_STEPS], len(longer.losses)) == (first.losses, 16)
    for each in ranks.run(run, config(tmp_path, resume=True, steps=11), num_ranks=2):
        assert each.error.endswith("checkpoint-16.pt: 16 steps are done, but 11 asked for; give more --steps")


def test_checkpoints_come_every_few_steps_and_at_the_end(ranks: RankPool, tmp_path: Path) -> None:
    """The newest ones are kept, with the step, the random states of all ranks and the configuration."""
    ranks.run(run, config(tmp_path, save_every=2, keep=3, steps=7), num_ranks=2)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [f"checkpoint-{step}.pt" for step in (4, 6, 7)]
    checkpoint = load_checkpoint(tmp_path / "checkpoint-7.pt")
    assert (checkpoint.step, len(checkpoint.random_states)) == (7, 2)
    first, second = (state["torch"] for state in checkpoint.random_states)
    assert not torch.equal(first, second)
    assert checkpoint.config == {
        "task": {"seed": 3, "dropout": 0.5},
        "training": {
            "strategy": "ring", "num_ranks": 2, "seed": 3, "global_batch_size": 8, "accumulate": 1, "clip_norm": None,
            "lr_schedule": "constant", "warmup_steps": 0, "schedule_steps": None, "amp": None,
            "compile": False,
        },
    }  # fmt: skip


def test_the_log_has_means_of_the_steps_since_the_last_line(ranks: RankPool, tmp_path: Path) -> None:
    """With the epoch, rates, the share of time spent communicating, the memory, and how long the rest will take."""
    each = ranks.run(run, config(tmp_path / "each"), num_ranks=2)[0]
    some = ranks.run(run, config(tmp_path / "some", log_every=5), num_ranks=2)[0]
    assert [(line["step"], line["epoch"]) for line in some.log] == [(5, 1), (10, 2), (12, 2)]
    means = [sum(each.losses[begin:end]) / (end - begin) for begin, end in ((0, 5), (5, 10), (10, 12))]
    assert some.losses == means
    for line in some.log:
        assert line.keys() == {
            "step", "epoch", "loss", "samples_per_s", "step_s", "sync_share", "peak_memory_bytes", "gradient_norm",
            "time_left_s", "time",
        }  # fmt: skip
        assert 0 < line["sync_share"] < 1
        assert line["samples_per_s"] > 0
        assert line["step_s"] > 0
        assert line["peak_memory_bytes"] > 2**20
    assert some.log[0]["time_left_s"] >= some.log[-1]["time_left_s"] == 0


def bad_steps(sample: int, num_ranks: int) -> list[tuple[int, int]]:
    """The steps, with the rank, in which that sample is seen."""
    shares = [Batches(NUM_SAMPLES, BATCH_SIZE, 3, rank, num_ranks) for rank in range(num_ranks)]
    return [
        (step, rank)
        for step in range(NUM_STEPS)
        for rank, batches in enumerate(shares)
        if sample in batches.share(step).indices and batches.share(step).weight
    ]


@pytest.mark.parametrize("strategy", ["bucketed", "zero1"])
def test_a_loss_that_is_no_number_stops_all_ranks(ranks: RankPool, tmp_path: Path, strategy: str) -> None:
    """All with the same words, naming step and rank, before anything is averaged: the model is still the good one."""
    sample = next(n for n in range(NUM_SAMPLES) if bad_steps(n, 2)[0][0] in (1, 2) and bad_steps(n, 2)[0][1] == 1)
    step, rank = bad_steps(sample, 2)[0]
    asked = config(tmp_path / "bad", strategy=strategy, save_every=100)
    results = ranks.run(run, asked, {"bad": (sample,)}, num_ranks=2)
    message = f"training step {step}: the loss of rank {rank} is nan"
    for each in results:
        assert each.error == f"DivergedError: {message}; a smaller --learning-rate may help, or --on-nan skip"
    good = ranks.run(run, replace(asked, output=tmp_path / "good", steps=step), num_ranks=2)[0]
    assert good.error == ""
    assert {each.fingerprint for each in results} == {good.fingerprint}
    assert results[0].losses == good.losses


@pytest.mark.parametrize("strategy", ["ddp", "bucketed"])
def test_such_a_step_can_be_left_out(ranks: RankPool, tmp_path: Path, strategy: str) -> None:
    """On all ranks; it is told, counted, spoils no buffer, and an interrupted run is still the uninterrupted one."""
    steps = bad_steps(5, 3)
    asked = config(tmp_path / "whole", strategy=strategy, on_nan="skip", log_every=2)
    whole = ranks.run(run, asked, {"bad": (5,)}, num_ranks=3)
    assert [each.error for each in whole] == ["", "", ""]
    assert whole[0].said == [
        f"training step {step}: the loss of rank {rank} is nan: all ranks skip the step" for step, rank in steps
    ]
    assert sum(line.get("skipped", 0) for line in whole[0].log) == len(steps) == 3
    assert all(math.isfinite(loss) for loss in whole[0].losses)
    assert math.isfinite(whole[0].seen)
    assert len({each.fingerprint for each in whole}) == 1
    parts = replace(asked, output=tmp_path / "parts", save_every=3)
    ranks.run(run, parts, {"bad": (5,)}, 8, num_ranks=3)
    resumed = ranks.run(run, replace(parts, resume=True), {"bad": (5,)}, num_ranks=3)
    assert (resumed[0].losses, resumed[0].fingerprint) == (whole[0].losses, whole[0].fingerprint)


def test_too_many_in_a_row_stop_the_run(ranks: RankPool, tmp_path: Path) -> None:
    """If nothing is a number any more, leaving out steps helps nobody."""
    everything = {"bad": tuple(range(NUM_SAMPLES))}
    for each in ranks.run(run, config(tmp_path, on_nan="skip"), everything, num_ranks=2):
        assert each.error == (
            "DivergedError: training step 10: the loss of rank 0 is nan, the loss of rank 1 is nan, "
            "after 10 steps skipped in a row"
        )


def nudge(trainer: Trainer, done: int) -> None:
    """After five steps rank 1 changes one of its parameters a little."""
    if (done, trainer.group.rank()) == (5, 1):
        with torch.no_grad():
            trainer.train_step.model.model.first.bias[2] += 0.25  # type: ignore[union-attr, operator, index]


def test_drift_stops_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    """At the next check, with the step, the parameter, the ranks and the difference; and before anything is saved."""
    asked = config(tmp_path, check_every=3, save_every=3)
    for each in ranks.run(run, asked, None, None, nudge, num_ranks=3):
        assert each.error.startswith(
            "DriftError: training step 5: the ranks have drifted apart: "
            "parameter first.bias differs between rank 0 and rank 1, by up to "
        )
    assert [path.name for path in tmp_path.glob("*.pt")] == ["checkpoint-3.pt"]


def test_ranks_that_begin_apart_are_refused(ranks: RankPool, tmp_path: Path) -> None:
    """Unless those of rank 0 are asked for; then they are all alike."""
    for each in ranks.run(run, config(tmp_path / "apart"), {"spread": 0.5}, num_ranks=2):
        assert each.error.startswith("ValueError: parameter middle.weight differs between rank 0 and rank 1")
    expected = ranks.run(run, config(tmp_path / "alike"), num_ranks=2)[0]
    asked = config(tmp_path / "broadcast", broadcast=True)
    for each in ranks.run(run, asked, {"spread": 0.5}, num_ranks=2):
        assert each.fingerprint == expected.fingerprint


def test_a_batch_is_asked_for_per_rank(ranks: RankPool, tmp_path: Path) -> None:
    """Two ranks with four samples each take the steps of one with eight, and of the task's own eight."""
    alone = ranks.run(run, config(tmp_path / "alone", batch_size=8), NO_DROPOUT, num_ranks=1)[0]
    own = ranks.run(run, config(tmp_path / "own"), NO_DROPOUT, num_ranks=2)[0]
    shared = ranks.run(run, config(tmp_path / "shared", batch_size=4), NO_DROPOUT, num_ranks=2)[0]
    assert own.losses == shared.losses
    assert shared.losses == pytest.approx(alone.losses, rel=1e-4, abs=1e-6)
    later = ranks.run(run, config(tmp_path / "shared", batch_size=8, resume=True), NO_DROPOUT, num_ranks=2)[0]
    assert "is of a run with global_batch_size 8, now 16: resume with the original settings" in later.error


def without_group(group: dist.ProcessGroup, output: Path) -> list[str]:
    """Return the result of rank 0 of a run with the strategy none, and the message on resuming."""
    results: list[Ran] = [run(group, config(output, strategy="none")), run(group, config(output, resume=True))]
    return [each.error for each in results]


def test_none_is_not_resumed(ranks: RankPool, tmp_path: Path) -> None:
    """Each rank has a model of its own, nobody minds that they differ, and only one of them was saved."""
    for first, second in ranks.run(without_group, tmp_path, num_ranks=2):
        assert first == ""
        assert "with the strategy none each rank has a different model" in second
