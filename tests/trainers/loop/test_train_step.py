"""One training step: when its gradients are ready, and the message that ranks exchange before each backward pass."""

import signal

import pytest
import torch.distributed as dist
from torch import nn, ones

from tests.ranks import RankPool
from tests.trainers.points import Points
from trainers.loop.config import StepConfig
from trainers.loop.loss_sync import StoppedError, exchange_losses
from trainers.loop.train_step import GradientClock, StepResult, TrainStep


def results(group: dist.ProcessGroup) -> list[StepResult]:
    """Of three steps, the last of which is left out."""
    points = Points(3)
    train_step = TrainStep(points, StepConfig(seed=3, strategy="ring"), group)
    done = [train_step.run(step) for step in range(2)]
    points._x[:] = float("nan")
    return [*done, train_step.run(2)]


def test_the_parts_of_a_step_are_timed(ranks: RankPool) -> None:
    """All take time, and the loss is that of the whole batch; a step that is left out has no backward pass."""
    first, second = ranks.run(results, num_ranks=2)
    assert [result.loss for result in first[:2]] == [result.loss for result in second[:2]]
    for result in (*first[:2], *second[:2]):
        parts = (result.forward_s, result.loss_sync_s, result.backward_s, result.sync_s, result.optimizer_s)
        assert min(parts) > 0
        assert result.step_s == pytest.approx(sum(parts))
        assert result.communication_s == pytest.approx(result.loss_sync_s + result.sync_s)
        assert result.trouble == ""
    assert first[2].trouble == "the loss of rank 0 is nan, the loss of rank 1 is nan"
    assert (first[2].backward_s, first[2].sync_s, first[2].optimizer_s) == (0.0, 0.0, 0.0)


def test_the_clock_knows_when_each_gradient_is_ready() -> None:
    """Gradients come from the last layer to the first, and the last one's moment is the latest."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    clock = GradientClock(model)
    model(ones(1, 2)).sum().backward()
    before_last_s = clock.before_last_s()
    assert before_last_s[0] == 0.0
    assert before_last_s[1] > 0.0


def told(group: dist.ProcessGroup) -> list[object]:
    """Return what each rank hears when none, one, or one and another have something to say."""
    rank = group.rank()
    heard: list[object] = [exchange_losses(group, float(rank), stop=False)]
    heard.append(exchange_losses(group, 0.0, stop=False, asked=signal.SIGUSR1 if rank == 1 else 0).asked)
    try:
        exchange_losses(group, 0.0, stop=rank == 2, asked=signal.SIGTERM if rank == 0 else 0)
    except StoppedError as error:
        heard.append(str(error))
    return heard


def test_what_one_rank_is_asked_all_know(ranks: RankPool) -> None:
    """A rank that cannot go on at all counts for more."""
    heard = [([0.0, 1.0, 2.0], 0), signal.SIGUSR1, "rank 2 cannot continue"]
    assert ranks.run(told, num_ranks=3) == [heard] * 3
