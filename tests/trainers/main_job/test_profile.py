"""The recorded profile of a step."""

import pytest
import torch

from trainers.main_job.profile import record_profile
from trainers.tasks.config import ModelConfig, TrainConfig
from trainers.tasks.data import Shard, load_tokens
from trainers.tasks.model import TinyTransformer

MODEL = ModelConfig(d_model=16, heads=2, layers=2, d_ff=32, sequence_length=16)
TRAIN = TrainConfig(batch_size=3, steps=1)


def test_a_profile_has_all_parameters_and_leaves_the_model_alone() -> None:
    """In the order of registration; the head's gradients are ready before those of the first block."""
    model = TinyTransformer(MODEL)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    shard = Shard(load_tokens("random", MODEL, 1, 0), 0, 1, MODEL, TRAIN)
    profile, steps_s = record_profile(model, shard, TRAIN.learning_rate)
    assert len(steps_s) == profile.provenance["steps"]
    named = [(name, p.numel()) for name, p in model.named_parameters()]
    assert [(p.name, p.elements) for p in profile.parameters] == named
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    by_name = {p.name: p.ready_s for p in profile.parameters}
    first, last = ([s for name, s in by_name.items() if f"blocks.{index}." in name] for index in (0, 1))
    assert 0 < max(last) < max(first) <= profile.backward_s
    assert profile.step_s == pytest.approx(profile.forward_s + profile.backward_s + profile.optimizer_s)
    assert profile.buffer_bytes == sum(buffer.nbytes for buffer in model.buffers())
    assert profile.provenance["torch"] == torch.__version__
