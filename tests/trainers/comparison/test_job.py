"""Every strategy trained and recorded from the same start: the same model, and predictions of its steps and bytes."""

import re
from collections import defaultdict
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from collectives.probes import Blocks, probe
from ringsim.network import Host, Link, Network, Spec
from tests.ranks import RankPool
from trainers.checkpoints.checkpoint import seed_alike
from trainers.comparison import JobConfig
from trainers.comparison.job import agreed_network, describe_steps, start_runs, take_step
from trainers.comparison.recording import RankProfile, RecordedRuns, _RecordedRun, common_profile
from trainers.comparison.report import RankNotes, StepPrediction
from trainers.loop.batches import Share
from trainers.loop.config import StepConfig
from trainers.loop.meter import Memory, activation_bytes
from trainers.loop.train_step import StepResult, TrainStep
from trainers.strategies import STRATEGIES, strategy_info
from trainers.tasks import LanguageModel

TASK = LanguageModel(5, learning_rate=1e-2, d_model=16, heads=2, layers=1, d_ff=32, sequence_length=16)
SPLIT = ("bucketed/0.004", "zero2/0.004", "powersgd/1")
NAMES = (*(name for name in STRATEGIES if name != "fsdp_backend_ring"), *SPLIT)
STEPS, BATCH_SIZE = 4, 3
CONFIG = JobConfig(TASK, StepConfig(batch_size=BATCH_SIZE, seed=5), NAMES, steps=8, one_process=True)  # one period
NETWORK = Network("two", Spec(host=Host(link=Link(latency_s=1e-3, bandwidth_bytes_per_s=1e6))), "", "")


class Done(NamedTuple):
    """Notes of training on one rank with a line about the last step, and what all ranks have recorded.

    left: the groups that recording has left. counts: of the recorded steps, as told and as announced.
    """

    notes: dict[str, RankNotes]
    line: str
    predicted: dict[str, StepPrediction]
    memory: dict[str, Memory]
    profiles: list[RankProfile]
    left: set[str]
    counts: tuple[int, int]


def train_and_record(group: dist.ProcessGroup) -> Done:
    """Do what a job does, without probes, and with few recorded steps."""
    runs, told = start_runs(CONFIG, group), []
    for step in range(STEPS):
        take_step(runs, step)
    line = describe_steps(runs, STEPS, STEPS) if group.rank() == 0 else ""
    for run in runs:
        run.finish()
    before = set(dist.distributed_c10d._world.pg_names.values())
    with mock.patch("trainers.comparison.recording.STEPS", 3), RecordedRuns(CONFIG, group) as recorded:
        for share in (0.0, 0.5, 1.0):
            recorded.take_until(share, told.append)
        recorded.gather()
    left = set(dist.distributed_c10d._world.pg_names.values()) - before
    notes, counts = {run.name: run.notes for run in runs}, (len(told), recorded.num_steps)
    predicted, profiles = recorded.predict(NAMES, NETWORK, 1.0), [rank.profile for rank in recorded.ranks]
    return Done(notes, line, predicted, recorded.memory(NAMES), profiles, left, counts)


@pytest.fixture(scope="module")
def done(ranks: RankPool) -> list[Done]:
    """The outcome on two ranks."""
    return ranks.run(train_and_record, num_ranks=2)


def alone() -> list[float]:
    """The losses of one process that sees the batches of both ranks at once, in plain torch."""
    whole = StepConfig(batch_size=2 * BATCH_SIZE, seed=5).batches(TASK, 0, 1)
    seed_alike(5)
    model = TASK.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = TASK.loss(model, TASK.batch(whole.share(step).indices))
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_all_strategies_train_the_same_model(done: list[Done]) -> None:
    """As one process with the whole batch would, all ranks holding the same bits; those that are not exact do not."""
    (first, second), expected = (rank.notes for rank in done), alone()
    assert first["one_process"].losses == pytest.approx(expected, rel=1e-6)
    assert second["one_process"].losses == []
    for name in NAMES:
        info, note = strategy_info(name), first[name]
        assert note.losses == second[name].losses, name
        assert len(note.losses) == STEPS
        if info.is_exact:
            assert note.losses == pytest.approx(expected, rel=1e-3 if info.wire else 1e-4), name
        assert (note.fingerprint == second[name].fingerprint) == (name != "none"), name
        assert (note.gradient_difference is not None) == info.leaves_mean
        if note.gradient_difference is not None:
            assert note.gradient_difference < (2e-2 if info.wire else 1e-5) or not info.is_exact, name
        assert all(result.moments.sync_s > 0 for result in note.results) or name == "fsdp"
    assert (first["powersgd"].gradient_difference or 0.0) > 0.01
    shape = r"step 4/4: loss \d\S+ \(\S+\) to \d\S+ \(\S+\), .* ms \(\S+\) to .* ms \(\S+\) a step"
    assert re.fullmatch(shape, done[0].line)


def test_every_strategy_is_recorded_and_predicted(done: list[Done]) -> None:
    """All ranks predict the same; without synchronisation it takes less, and no group is left."""
    first, second = done
    assert first.predicted == second.predicted
    assert list(first.predicted) == list(NAMES)
    assert first.counts[0] == first.counts[1]
    assert not first.left
    for name, (sync_s, step_s) in first.predicted.items():
        # What is sent before the last gradient is ready, with fsdp all, is in the step alone.
        assert 0 <= sync_s < step_s
        assert (sync_s < 1e-3) == (name in ("none", "fsdp")), name


def check_memory(done: list[Done]) -> None:
    """Predicted and held bytes are equal on the rank that holds most."""
    recorded = done[0].memory
    for name, predicted in recorded.items():
        held = [memory for rank in done if (memory := rank.notes[name].memory)]
        assert max(held, key=lambda memory: memory.total) == predicted, name
    whole, zero1, zero2, zero3 = (recorded[name] for name in ("none", "zero1", "zero2", "zero3"))
    assert whole.optimizer == 2 * whole.parameters
    assert zero1.optimizer == zero2.optimizer == 2 * zero2.gradients
    assert zero2.gradients < whole.gradients / len(done) * 1.01 < zero1.gradients
    assert zero3.parameters == zero3.gradients < whole.parameters / len(done) * 1.01 < zero2.parameters


def test_memory_is_predicted_to_the_byte(done: list[Done]) -> None:
    """In each of its kinds, on the rank that holds most; the sharded strategies hold less of what they share."""
    check_memory(done)


@pytest.mark.slow
def test_memory_is_predicted_to_the_byte_on_four_ranks(ranks: RankPool) -> None:
    """Where shares have other sizes."""
    check_memory(ranks.run(train_and_record, num_ranks=4))


def test_a_profile_has_all_parameters(done: list[Done]) -> None:
    """In the order of registration; the head's gradients are ready first. It is as long as the slowest rank's."""
    profile, steps_s = done[0].profiles[0]
    model = TASK.model()
    assert [(p.name, p.elements) for p in profile.parameters] == [(n, p.numel()) for n, p in model.named_parameters()]
    ready_s = {p.name: p.ready_s for p in profile.parameters}
    block_s = [s for name, s in ready_s.items() if name.startswith("blocks.")]
    assert 0 < ready_s["head.weight"] < min(block_s) < max(block_s) <= ready_s["embedding.weight"] <= profile.backward_s
    assert profile.step_s == pytest.approx(profile.forward_s + profile.backward_s + profile.optimizer_s)
    assert profile.buffer_bytes == sum(buffer.nbytes for buffer in model.buffers())
    assert (profile.provenance["steps"], profile.provenance["torch"]) == (len(steps_s), torch.__version__)
    slower = [RankProfile(profile, [1.0, 1.0]), RankProfile(profile, [2.0, 2.0])]
    overlapping, behind = (common_profile(slower, overlaps) for overlaps in (True, False))
    assert overlapping.step_s == behind.step_s == pytest.approx(2.0)
    assert overlapping.parameters[-1].ready_s == pytest.approx(profile.parameters[-1].ready_s * 2 / profile.step_s)
    assert {parameter.ready_s for parameter in behind.parameters} == {behind.backward_s}


def agreed(group: dist.ProcessGroup, cores: list[int]) -> tuple[int | None, float]:
    """Return cores and pace of the network that all ranks predict with, hosts having so many cores."""
    with mock.patch("os.cpu_count", return_value=cores[group.rank()]):
        measured = probe(group, 2**16, 2**16, blocks=Blocks(1, 1, 1e-3))
    network, pace = agreed_network(measured, group)
    return network.spec.host.cores, pace


def test_all_ranks_predict_for_rank_0s_host(ranks: RankPool) -> None:
    """Whatever their own hosts are like: else they would predict different times, or wait for one another."""
    assert ranks.run(agreed, [64, 1], num_ranks=2) == [(64, 1.0)] * 2
    (cores, pace), other = ranks.run(agreed, [1, 64], num_ranks=2)
    assert (cores, pace) == other == (1, pytest.approx(0.5))


def losses_recorded(group: dist.ProcessGroup) -> list[list[float]]:
    """Return the losses of all steps, without synchronisation and with three strategies that step shares."""
    taken, take = defaultdict(list), _RecordedRun.take

    def noting(run: _RecordedRun, *arguments: Any) -> StepResult:
        result = take(run, *arguments)
        taken[run.name].append(result.loss)
        return result

    config = replace(CONFIG, strategies=("none", "zero1", "zero2", "zero3"), steps=20)
    with mock.patch.object(_RecordedRun, "take", noting), RecordedRuns(config, group) as runs:
        runs.take_until(1.0)
    return list(taken.values())


def test_each_recorded_step_begins_with_the_initial_parameters(ranks: RankPool) -> None:
    """Also where what is gathered is made up, so that it computes with numbers as those of training."""
    for none, zero1, zero2, zero3 in ranks.run(losses_recorded, num_ranks=2):
        assert zero1 == zero2 == zero3
        assert len(set(zero1)) > 15  # each has its batch
        assert zero1[0] == none[0]
        assert zero1[-1] == pytest.approx(zero1[0], rel=0.02)
        assert none[-1] < 0.98 * none[0]  # it trains


class Squares(nn.Module):
    """Saves its input of 5 numbers once, as a product with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (5,)."""
        return self.scale * x


def saved_of_a_product(group: dist.ProcessGroup) -> tuple[int, bool]:
    """The bytes that are saved by a model of one product, and whether the result of exp after it is still there."""
    results: list[StorageWeakRef] = []
    train_step = TrainStep(TASK, StepConfig(batch_size=3, strategy="none"), group)
    train_step.model.model = Squares()
    train_step.loss = lambda _: train_step.model.model(torch.ones(5))  # type: ignore[method-assign]
    saved = activation_bytes(train_step)

    def loss(_: Share) -> torch.Tensor:
        result = Squares()(torch.ones(5)).exp()
        results.append(StorageWeakRef(result.untyped_storage()))
        return result.sum()

    train_step.loss = loss  # type: ignore[method-assign]
    activation_bytes(train_step)
    return saved, not results[0].expired()


def test_parameters_are_no_activations(ranks: RankPool) -> None:
    """Of a product autograd saves both factors, only the input counts; a saved result is gone once it is counted."""
    assert ranks.run(saved_of_a_product, num_ranks=1) == [(20, False)]
