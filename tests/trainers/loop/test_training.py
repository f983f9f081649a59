"""Training with every strategy from the same start gives the same model."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from collectives.probes.probe import probe
from collectives.probes.workload import Blocks
from tests.ranks import RankPool
from trainers.data_parallel import broadcast_state
from trainers.identity import fingerprint
from trainers.loop.gradient_clock import GradientClock
from trainers.loop.training import start_runs, train
from trainers.main_job.job import _found, _profile
from trainers.strategies import STRATEGIES
from trainers.tasks.config import ModelConfig, TrainConfig
from trainers.tasks.data import Shard, load_tokens
from trainers.tasks.model import TinyTransformer, next_token_loss

MODEL = ModelConfig(d_model=16, heads=2, layers=1, d_ff=32, sequence_length=16)
NAMES = tuple(name for name in STRATEGIES if name != "ddp_on_ring")  # which wants groups of its own
TRAIN = TrainConfig(batch_size=3, steps=4, learning_rate=1e-2, seed=5)


def trained(group: dist.ProcessGroup) -> dict[str, tuple[list[float], str, int]]:
    """Losses, fingerprint and number of timed synchronisations after a few steps, by strategy."""
    tokens = load_tokens("topics", MODEL, group.size(), TRAIN.seed)
    shard = Shard(tokens, group.rank(), group.size(), MODEL, TRAIN)
    runs = start_runs(NAMES, MODEL, TRAIN, group)
    train(runs, shard, range(TRAIN.steps), lambda _: None)
    assert all(time > 0 for run in runs for time in run.sync_s)
    return {run.name: (run.losses, fingerprint(run.model), len(run.step_s)) for run in runs}


def alone() -> list[float]:
    """The losses of one process that sees the batches of both ranks at once."""
    tokens = load_tokens("topics", MODEL, 2, TRAIN.seed)
    shards = [Shard(tokens, rank, 2, MODEL, TRAIN) for rank in range(2)]
    torch.manual_seed(TRAIN.seed)
    model = TinyTransformer(MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TRAIN.learning_rate)
    losses = []
    for step in range(TRAIN.steps):
        optimizer.zero_grad()
        loss = next_token_loss(model, torch.cat([shard.batch(step) for shard in shards]))
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_all_strategies_train_the_same_model(ranks: RankPool) -> None:
    """As one process with the whole batch would, all ranks holding the same bits; "none" alone does not."""
    first, second = ranks.run(trained, num_ranks=2)
    expected = alone()
    for name in NAMES:
        mean = [(a + b) / 2 for a, b in zip(first[name][0], second[name][0], strict=True)]
        if name != "none":
            assert mean == pytest.approx(expected, rel=1e-3 if name.endswith("bf16") else 1e-4), name
        assert (first[name][1] == second[name][1]) == (name != "none"), name
        assert first[name][2] == TRAIN.steps


def broadcast(group: dist.ProcessGroup) -> list[list[float]]:
    """A model's state after rank 0 has given its own away; the ranks start differently."""
    torch.manual_seed(group.rank())
    model = nn.BatchNorm1d(3)
    nn.init.normal_(model.weight)
    nn.init.normal_(model.running_mean)
    broadcast_state(model, group)
    return [tensor.tolist() for tensor in model.state_dict().values() if tensor.dim()]


def test_state_comes_from_rank_0(ranks: RankPool) -> None:
    """Parameters and buffers."""
    results = ranks.run(broadcast, num_ranks=3)
    torch.manual_seed(0)
    expected = nn.init.normal_(torch.empty(3)).tolist()
    assert results[0] == results[1] == results[2]
    assert results[0][0] == expected


def test_fingerprints_see_a_single_bit() -> None:
    """Equal models agree; the smallest change of one number does not go unseen, in a buffer neither."""
    model, same, other = (nn.BatchNorm1d(3) for _ in range(3))
    other.running_mean[1] = torch.finfo(torch.float32).tiny
    assert fingerprint(model) == fingerprint(same)
    assert fingerprint(model) != fingerprint(other)


def test_the_clock_knows_when_each_gradient_is_ready() -> None:
    """Gradients come from the last layer to the first, and the last one's moment is the latest."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    clock = GradientClock(model)
    model(torch.ones(1, 2)).sum().backward()
    before_last_s = clock.before_last_s()
    assert before_last_s[0] == 0.0
    assert before_last_s[1] > 0.0


def leads(group: dist.ProcessGroup, cores: list[int]) -> list[float]:
    """How long before the end of the backward pass each gradient counts as ready, hosts having so many cores."""
    tokens = load_tokens("topics", MODEL, group.size(), TRAIN.seed)
    shard = Shard(tokens, group.rank(), group.size(), MODEL, TRAIN)
    runs = start_runs(("ring",), MODEL, TRAIN, group)
    with mock.patch("os.cpu_count", return_value=cores[group.rank()]):
        measured = probe(group, 2**16, 2**16, blocks=Blocks(1, 1, 1e-3))
    network, overlap = _found(measured, group)
    assert network.spec.host.cores == cores[0]
    profile = _profile(runs, shard, TRAIN.learning_rate, group, overlap)
    return [profile.backward_s - each.ready_s for each in profile.parameters]


@pytest.mark.parametrize(("cores", "overlaps"), [([64, 1], True), ([1, 64], False)])
def test_all_ranks_use_rank_0s_profile(ranks: RankPool, cores: list[int], overlaps: bool) -> None:
    """Whatever their own hosts are like: else they would predict different times, or wait for one another."""
    first, second = ranks.run(leads, cores, num_ranks=2)
    assert first == second
    assert len(first) == len(list(TinyTransformer(MODEL).parameters()))
    assert (max(first) > 0) == overlaps
