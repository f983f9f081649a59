"""One training step: its parts, autocast and compiled passes, and the message before each backward pass."""

import signal

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.models import SGD, parameters_of, small_model, take_step
from tests.trainers.points import Points, Training
from trainers.data_parallel import DataParallel
from trainers.loop.config import StepConfig
from trainers.loop.train_step import CANNOT_CONTINUE, StepResult, StoppedError, TrainStep, exchange_losses


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
    for _, trouble, moments, _ in (*first[:2], *second[:2]):
        parts = (moments.forward_s, moments.loss_sync_s, moments.backward_s, moments.sync_s, moments.optimizer_s)
        assert min(parts) > 0
        assert moments.step_s == pytest.approx(sum(parts))
        assert moments.communication_s == pytest.approx(moments.loss_sync_s + moments.sync_s)
        assert trouble == ""
    assert first[2].trouble == "the loss of rank 0 is nan, the loss of rank 1 is nan"
    left_out = first[2].moments
    assert (left_out.backward_s, left_out.sync_s, left_out.optimizer_s) == (0.0, 0.0, 0.0)


def told(group: dist.ProcessGroup) -> list[object]:
    """Return what each rank hears when none, one, or one and another have something to say."""
    rank = group.rank()
    heard: list[object] = [exchange_losses(group, float(rank))]
    heard.append(exchange_losses(group, 0.0, signal.SIGUSR1 if rank == 1 else 0).asked)
    try:
        exchange_losses(group, 0.0, (signal.SIGTERM, 0, CANNOT_CONTINUE)[rank])
    except StoppedError as error:
        heard.append(str(error))
    return heard


def test_what_one_rank_is_asked_all_know(ranks: RankPool) -> None:
    """A rank that cannot go on at all counts for more."""
    heard = [([0.0, 1.0, 2.0], 0), signal.SIGUSR1, "rank 2 cannot continue"]
    assert ranks.run(told, num_ranks=3) == [heard] * 3


def dtypes_with_amp(group: dist.ProcessGroup) -> tuple[set[torch.dtype], set[torch.dtype], torch.dtype]:
    """Of what the last layer gives, of parameters and gradients after a step, and of the loss."""
    given: set[torch.dtype] = set()
    step = TrainStep(Points(3), StepConfig(strategy="ring", amp="bfloat16", seed=3), group)
    step.model.model.last.register_forward_hook(lambda _module, _inputs, output: given.add(output.dtype))
    step.run(0)
    kept = {t.dtype for p in step.model.parameters() for t in (p, p.grad) if t is not None}
    return given, kept, step.loss(step.batches.share(1)).dtype


def test_amp_is_of_forward_passes_alone(ranks: RankPool) -> None:
    """Parameters, gradients and the loss remain float32."""
    for given, kept, loss in ranks.run(dtypes_with_amp, num_ranks=2):
        assert (given, kept, loss) == ({torch.bfloat16}, {torch.float32}, torch.float32)


def parameters_after_two_steps(group: dist.ProcessGroup, strategy: str, compiles: bool) -> list[torch.Tensor]:
    """Train a small model; the first step may form buckets anew."""
    model, graphs = DataParallel(small_model(), strategy, group), []
    if compiles:
        model.compile(backend=lambda graph, _: graphs.append(graph) or graph.forward)
    optimizer = model.optimizer(SGD)
    for _ in range(2):
        take_step(model, optimizer, group.rank())
    assert len(graphs) == compiles  # of the whole model
    return parameters_of(model)


@pytest.mark.parametrize("strategy", ["bucketed", "ddp", "zero1"])
def test_a_compiled_model_is_synchronised_alike(ranks: RankPool, strategy: str) -> None:
    """The graph that torch takes of it, without the compiler, gives the same parameters."""
    plain, compiled = (
        ranks.run(parameters_after_two_steps, strategy, compiles, num_ranks=2)[1] for compiles in (False, True)
    )
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_a_run_compiles_its_model(train: Training) -> None:
    """And computes the same to rounding."""
    plain = train("plain", options={"dropout": 0.0})[0]
    compiled, other = train("compiled", options={"dropout": 0.0}, compile=True)
    assert compiled.error == ""
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-3, abs=1e-5)
    assert compiled.fingerprint == other.fingerprint
