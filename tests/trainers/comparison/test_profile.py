"""The profile of a step, and the activations that a rank saves in it."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ringsim.training_step import StepProfile
from tests.ranks import RankPool
from trainers.comparison.profile import activation_bytes, profile_of
from trainers.loop.batches import Share
from trainers.loop.config import StepConfig
from trainers.loop.train_step import TrainStep
from trainers.tasks import LanguageModel

TASK = LanguageModel(5, d_model=16, heads=2, layers=1, d_ff=32, sequence_length=16)


def recorded(group: dist.ProcessGroup) -> tuple[StepProfile, list[float], list[tuple[str, int]], int]:
    """A profile, the times of its steps, the model's parameters and the bytes of its buffers."""
    task = LanguageModel(0, "random", d_model=16, heads=2, layers=2, d_ff=32, sequence_length=16)
    train_step = TrainStep(task, StepConfig(strategy="none", batch_size=3), group)
    times = [(train_step.run(step), train_step.clock.before_last_s()) for step in range(3)]
    profile, steps_s = profile_of(train_step.model.model, times)
    model = train_step.model.model
    named = [(name, p.numel()) for name, p in model.named_parameters()]
    return profile, steps_s, named, sum(buffer.nbytes for buffer in model.buffers())


def test_a_profile_has_all_parameters(ranks: RankPool) -> None:
    """In the order of registration; the head's gradients are ready before those of the first block."""
    profile, steps_s, named, buffer_bytes = ranks.run(recorded, num_ranks=2)[0]
    assert len(steps_s) == profile.provenance["steps"]
    assert [(p.name, p.elements) for p in profile.parameters] == named
    by_name = {p.name: p.ready_s for p in profile.parameters}
    first, last = ([s for name, s in by_name.items() if f"blocks.{index}." in name] for index in (0, 1))
    assert 0 < max(last) < max(first) <= profile.backward_s
    assert profile.step_s == pytest.approx(profile.forward_s + profile.backward_s + profile.optimizer_s)
    assert profile.buffer_bytes == buffer_bytes
    assert profile.provenance["torch"] == torch.__version__


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
