"""A trainer computes what its task and configuration say: on any number of ranks, interrupted or not."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion

from tests.ranks import RankPool
from tests.trainers.points import BATCH_SIZE, NUM_SAMPLES, NUM_STEPS, Ran, Training, run
from trainers.checkpoints.checkpoint import load_checkpoint
from trainers.loop.batches import Batches
from trainers.loop.config import RateSchedule
from trainers.loop.trainer import Trainer
from trainers.strategies import STRATEGIES

NO_DROPOUT = {"dropout": 0.0}  # ranks draw other numbers than one process does
QUICK = ("ring", "ddp", "zero1", "zero2/0.00002", "zero3", "fsdp", "bucketed", "diloco/5", "powersgd/1")
# Not "none", whose ranks have models of their own. Those on our backend are tried where ranks are processes.
TRIED = {"none", *(name.partition("/")[0] for name in QUICK)}
OTHERS = sorted(name for name, info in STRATEGIES.items() if not info.backend and name not in TRIED)


@pytest.mark.parametrize("strategy", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_an_interrupted_run_equals_the_uninterrupted_one(train: Training, strategy: str) -> None:
    """Bit for bit, losses and model, with dropout, a changing buffer, ranks without samples and lines between saves.

    Also where the ranks hold other parameters when a checkpoint is written; and in the end they do not.
    """
    rates = {"lr_schedule": "cosine", "warmup_steps": 3, "amp": "bfloat16" if strategy == "ring" else None}
    settings = {"num_ranks": 3, "strategy": strategy, "clip_norm": 2.0, "log_every": 3, **rates}
    expected = train("whole", **settings)[0]
    assert expected.error == ""
    factor = RateSchedule("cosine", 3, NUM_STEPS).factor
    assert [(line["step"], line["learning_rate"]) for line in expected.log] == [
        (step, 0.05 * factor(step - 1)) for step in (3, 6, 9, 12)
    ]
    interrupted = train("parts", until=7, **settings)[0]
    assert [line["step"] for line in interrupted.log] == [3, 6]
    resumed = train("parts", resume=True, **settings)
    assert resumed[0].said == ["resumed from FOLDER/parts/checkpoint-4.pt: 4 of 12 steps are done"]
    assert resumed[0].losses == expected.losses
    assert {each.fingerprint for each in resumed} == {expected.fingerprint}
    assert resumed[0].seen == expected.seen != 0
    assert len(set(expected.losses)) == 4


def test_the_number_of_ranks_and_parts_makes_no_difference(train: Training) -> None:
    """Losses are those of one process with the whole batch, but for rounding; on all ranks the same."""
    alone = train("alone", 1, NO_DROPOUT)[0]
    assert len(alone.losses) == NUM_STEPS
    for num_ranks, accumulate, batch_size in ((1, 3, 8), (3, 2, None), (5, 4, None), (2, 1, 4)):
        shared = train(f"shared{num_ranks}", num_ranks, NO_DROPOUT, accumulate=accumulate, batch_size=batch_size)
        assert shared[0].losses == pytest.approx(alone.losses, rel=1e-4, abs=1e-6)
        assert len({each.fingerprint for each in shared}) == 1


@pytest.fixture(scope="module")
def begun(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Runs that were interrupted after their fifth step, by the names of their strategies."""
    train = Training(ranks, tmp_path_factory.mktemp("begun"))
    for name in ("ring", "diloco", "none"):
        train(name, until=5, options=NO_DROPOUT, strategy="diloco/5" if name == "diloco" else name)
    return train


@pytest.mark.parametrize(
    ("num_ranks", "strategy", "said"),
    [
        (3, "ring", "it is of 2 ranks, now 3: the batches are the same, the random states are new, and losses will "),
        (2, "ddp", "it is of the strategy ring, now ddp: losses will agree to rounding"),
    ],
)
def test_other_ranks_or_another_strategy_may_go_on(train: Training, num_ranks: int, strategy: str, said: str) -> None:
    """The batches are the same; rank 0 says that losses agree to rounding, which they do."""
    expected = train("whole", 2, NO_DROPOUT)[0]
    train("parts", 2, NO_DROPOUT, until=6)
    first, second, *_ = train("parts", num_ranks, NO_DROPOUT, resume=True, strategy=strategy)
    assert first.losses == pytest.approx(expected.losses, rel=1e-4, abs=1e-6)
    assert first.said[1].startswith(said)
    assert second.said == []


DIFFERENT: dict[str, list[dict[str, Any]]] = {  # from the run that was begun
    "ring": [
        {"seed": 4}, {"batch_size": 5, "clip_norm": 1.0}, {"options": {}}, {"amp": "bfloat16"},
        {"lr_schedule": "cosine"}, {"strategy": "zero1"},
    ],
    "diloco": [{"strategy": "ring"}, {"strategy": "diloco/4"}, {"strategy": "diloco/5", "num_ranks": 3}],
    "none": [{"strategy": "none"}],
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_run_is_refused(begun: Training, name: str, snapshot: SnapshotAssertion) -> None:
    """On every rank, with all that differs, and what to do."""
    said = {}
    for asked in DIFFERENT[name]:
        (said[str(asked)],) = {each.error for each in begun(name, **{"options": NO_DROPOUT, "resume": True, **asked})}
    assert said == snapshot


def test_a_run_that_is_over_is_not_trained_on(train: Training) -> None:
    """Resumed once more it changes nothing; with more epochs it goes on."""
    first = train()[0]
    again = train(resume=True)[0]
    assert (again.losses, again.fingerprint, again.memory) == (first.losses, first.fingerprint, None)
    longer = train(resume=True, epochs=4)[0]
    assert (longer.losses[:NUM_STEPS], len(longer.losses)) == (first.losses, 16)
    for each in train(resume=True, steps=11):
        assert each.error.endswith("checkpoint-16.pt: 16 steps are done, but 11 asked for; give more `steps`")


def test_checkpoints_come_every_few_steps_and_at_the_end(train: Training, snapshot: SnapshotAssertion) -> None:
    """The newest ones are kept, with the step, the random states of all ranks and the configuration."""
    train(save_every=2, keep=3, steps=7)
    paths = sorted((train.folder / "run").glob("*.pt"))
    assert [path.name for path in paths] == [f"checkpoint-{step}.pt" for step in (4, 6, 7)]
    checkpoint = load_checkpoint(paths[-1])
    assert (checkpoint.step, len(checkpoint.random_states)) == (7, 2)
    assert not torch.equal(*(state["torch"] for state in checkpoint.random_states))
    assert checkpoint.config == snapshot


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
def test_a_loss_that_is_no_number_stops_all_ranks(train: Training, strategy: str) -> None:
    """All with the same words, naming step and rank, before anything is averaged: the model is still the good one."""
    sample = next(n for n in range(NUM_SAMPLES) if bad_steps(n, 2)[0] in ((1, 1), (2, 1)))
    step, rank = bad_steps(sample, 2)[0]
    results = train("bad", options={"bad": (sample,)}, strategy=strategy, save_every=100)
    where = f"training step {step}: the loss of rank {rank} is nan"
    message = f"DivergedError: {where}; a smaller `learning_rate` may help, or `on_nan` skip"
    assert [each.error for each in results] == [message] * 2
    good = train("good", strategy=strategy, steps=step)[0]
    assert good.error == ""
    assert {each.fingerprint for each in results} == {good.fingerprint}
    assert results[0].losses == good.losses


@pytest.mark.parametrize("strategy", ["ddp", "bucketed"])
def test_such_a_step_can_be_left_out(train: Training, strategy: str) -> None:
    """On all ranks; it is told, counted, spoils no buffer, and an interrupted run is still the uninterrupted one."""
    steps = bad_steps(5, 3)
    skipping = partial(train, num_ranks=3, options={"bad": (5,)}, strategy=strategy, on_nan="skip", log_every=2)
    whole = skipping("whole")
    assert [each.error for each in whole] == ["", "", ""]
    assert whole[0].said == [
        f"training step {step}: the loss of rank {rank} is nan: all ranks skip the step" for step, rank in steps
    ]
    assert sum(line.get("skipped", 0) for line in whole[0].log) == len(steps) == 3
    assert all(map(math.isfinite, [*whole[0].losses, whole[0].seen]))
    assert len({each.fingerprint for each in whole}) == 1
    skipping("parts", until=8, save_every=3)
    resumed = skipping("parts", save_every=3, resume=True)[0]
    assert (resumed.losses, resumed.fingerprint) == (whole[0].losses, whole[0].fingerprint)


def test_too_many_in_a_row_stop_the_run(train: Training, snapshot: SnapshotAssertion) -> None:
    """If nothing is a number any more, leaving out steps helps nobody."""
    first, second = train(options={"bad": tuple(range(NUM_SAMPLES))}, on_nan="skip")
    assert first.error == second.error == snapshot


def run_drifting(group: dist.ProcessGroup, *arguments: Any) -> Ran:
    """A run in which after five steps rank 1 changes one of its parameters a little."""

    def nudge(trainer: Trainer, done: int) -> None:
        if (done, group.rank()) == (5, 1):
            with torch.no_grad():
                trainer.train_step.model.model.first.bias[2] += 0.25  # type: ignore[union-attr, operator, index]

    return run(group, *arguments, meddle=nudge)


def test_drift_stops_all_ranks(train: Training, snapshot: SnapshotAssertion) -> None:
    """At the next check, with the step, the parameter, the ranks and the difference; and before anything is saved."""
    errors = {each.error for each in train(num_ranks=3, run=run_drifting, check_every=3, save_every=3)}
    assert {error.partition(", by up to ")[0] for error in errors} == snapshot
    assert [path.name for path in train.folder.rglob("*.pt")] == ["checkpoint-3.pt"]


def test_ranks_that_begin_apart_may_begin_as_rank_0(train: Training) -> None:
    """Then they are all alike; otherwise the command refuses them."""
    expected = train("alike")[0]
    for each in train("broadcast", options={"spread": 0.5}, broadcast=True):
        assert each.fingerprint == expected.fingerprint
