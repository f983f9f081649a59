"""Training with every strategy in turn from the same start gives the same model."""

import re
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from collectives.probes.probe import probe
from collectives.probes.timing import Blocks
from tests.ranks import RankPool
from trainers.checkpoints.checkpoint import seed_alike
from trainers.comparison.config import JobConfig
from trainers.comparison.job import agreed_network, describe_steps, start_runs, take_step
from trainers.comparison.profile import common_profile
from trainers.comparison.recording import RecordedRuns
from trainers.loop.config import StepConfig
from trainers.strategy_names import STRATEGY_INFOS
from trainers.tasks import LanguageModel

TASK = LanguageModel(5, learning_rate=1e-2, d_model=16, heads=2, layers=1, d_ff=32, sequence_length=16)
NAMES = tuple(name for name, info in STRATEGY_INFOS.items() if not info.backend)  # which want groups of their own
STEPS, BATCH_SIZE = 4, 3
CONFIG = JobConfig(TASK, StepConfig(batch_size=BATCH_SIZE, seed=5), NAMES, STEPS, one_process=True)


def trained(group: dist.ProcessGroup) -> tuple[dict[str, tuple[list[float], str, float | None]], str]:
    """By strategy losses, fingerprint and difference of the first gradients; and a line about the last step."""
    runs = start_runs(CONFIG, group)
    for step in range(STEPS):
        take_step(runs, step)
    told = describe_steps(runs, STEPS, STEPS) if group.rank() == 0 else ""
    for run in runs:
        run.finish()
    assert all(result.sync_s > 0 or run.name == "fsdp" for run in runs[1:] for result in run.results)
    notes = {run.name: run.notes() for run in runs}
    return {name: (note.losses, note.fingerprint, note.gradient_difference) for name, note in notes.items()}, told


def alone() -> list[float]:
    """The losses of one process that sees the batches of both ranks at once, in plain torch."""
    batches = CONFIG.step.batches(TASK, 0, 2)
    assert batches.global_batch_size == 2 * BATCH_SIZE
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


def test_all_strategies_train_the_same_model(ranks: RankPool) -> None:
    """As one process with the whole batch would, all ranks holding the same bits; those that are not exact do not."""
    (first, told), (second, _) = ranks.run(trained, num_ranks=2)
    expected = alone()
    assert first["one_process"] == (pytest.approx(expected, rel=1e-6), first["one_process"][1], None)
    assert second["one_process"][0] == []
    for name in NAMES:
        info, (losses, fingerprint, gradient_difference) = STRATEGY_INFOS[name], first[name]
        assert losses == second[name][0], name
        assert len(losses) == STEPS
        if info.is_exact:
            assert losses == pytest.approx(expected, rel=1e-3 if info.wire else 1e-4), name
        assert (fingerprint == second[name][1]) == (name != "none"), name
        assert (gradient_difference is not None) == info.leaves_mean
        if gradient_difference is not None:
            assert gradient_difference < (2e-2 if info.wire else 1e-5) or not info.is_exact, name
    assert first["powersgd"][2] is not None
    assert first["powersgd"][2] > 0.01
    assert re.match(r"step 4/4: loss \d\S+ \(\w+\) to \d\S+ \(\w+\), .* ms \(\w+\) to .* ms \(\w+\) a step$", told)


def leads(group: dist.ProcessGroup, cores: list[int]) -> list[float]:
    """How long before the end of the backward pass each gradient counts as ready, hosts having so many cores."""
    with mock.patch("os.cpu_count", return_value=cores[group.rank()]):
        measured = probe(group, 2**16, 2**16, blocks=Blocks(1, 1, 1e-3))
    network, pace = agreed_network(measured, group)
    assert network.spec.host.cores == cores[0]
    with RecordedRuns(replace(CONFIG, strategies=("none",)), group) as runs:
        runs.take_until(1.0)
        runs.gather()
        profile = common_profile([rank.profile for rank in runs.ranks], pace == 1)
    return [profile.backward_s - parameter.ready_s for parameter in profile.parameters]


@pytest.mark.parametrize(("cores", "overlaps"), [([64, 1], True), ([1, 64], False)])
def test_all_ranks_use_rank_0s_profile(ranks: RankPool, cores: list[int], overlaps: bool) -> None:
    """Whatever their own hosts are like: else they would predict different times, or wait for one another."""
    first, second = ranks.run(leads, cores, num_ranks=2)
    assert first == second
    assert len(first) == len(list(TASK.model().parameters()))
    assert (max(first) > 0) == overlaps
