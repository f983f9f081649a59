"""The recorded profile of a step."""

import pytest
import torch
import torch.distributed as dist

from ringsim.training_step import StepProfile
from tests.ranks import RankPool
from trainers.loop.config import StepConfig
from trainers.loop.train_step import TrainStep
from trainers.main_job.profile import record_profile
from trainers.tasks import LanguageModel


def recorded(group: dist.ProcessGroup) -> tuple[StepProfile, list[float], list[tuple[str, int]], int]:
    """A profile, the times of its steps, the model's parameters and the bytes of its buffers."""
    task = LanguageModel(0, "random", d_model=16, heads=2, layers=2, d_ff=32, sequence_length=16)
    train_step = TrainStep(task, StepConfig(strategy="none", batch_size=3), group)
    profile, steps_s = record_profile(train_step)
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
