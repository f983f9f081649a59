"""The profile of a step, and what a rank holds with each strategy, which is what is predicted."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ringsim.training_step import Parameter, StepProfile
from tests.ranks import RankPool
from trainers.loop.config import StepConfig
from trainers.loop.train_step import TrainStep
from trainers.main_job.job import parts_of
from trainers.main_job.profile import ComputingTimes, activation_bytes, measure_memory, profile_of, states_per_element
from trainers.predictions.memory import Memory, predict_memory
from trainers.predictions.vectors import ModelParts
from trainers.strategies.flat_vector import described
from trainers.strategy_names import STRATEGY_INFOS
from trainers.tasks import LanguageModel

TASK = LanguageModel(5, d_model=16, heads=2, layers=1, d_ff=32, sequence_length=16)
NAMES = (
    *(name for name, info in STRATEGY_INFOS.items() if not info.on_ring),
    "bucketed/0.004",
    "zero2/0.004",
    "powersgd/1",
)
Pairs = dict[str, tuple[Memory, Memory]]


def recorded(group: dist.ProcessGroup) -> tuple[StepProfile, list[float], list[tuple[str, int]], int]:
    """A profile, the times of its steps, the model's parameters and the bytes of its buffers."""
    task = LanguageModel(0, "random", d_model=16, heads=2, layers=2, d_ff=32, sequence_length=16)
    train_step = TrainStep(task, StepConfig(strategy="none", batch_size=3), group)
    times = [ComputingTimes.of(train_step.run(step), train_step.clock.before_last_s()) for step in range(3)]
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


def held_and_predicted(group: dist.ProcessGroup) -> Pairs:
    """By strategy, after two steps."""
    pairs = {}
    alone = TrainStep(TASK, StepConfig(batch_size=3, strategy="none"), group)
    states, activations = states_per_element(alone), activation_bytes(alone)
    for name in NAMES:
        train_step = TrainStep(TASK, StepConfig(batch_size=3, strategy=name), group)
        parameters = described(p for p in train_step.model.parameters() if p.requires_grad)
        parts = parts_of(train_step.model.module)
        for step in range(2):
            train_step.run(step)
        profile = StepProfile(tuple(parameters), 0.0, 0.0, 0.0)
        expected = predict_memory(name, profile, group.size(), states, activations, parts)
        pairs[name] = (measure_memory(train_step), expected)
    return pairs


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_what_is_held_is_what_is_predicted(ranks: RankPool, num_ranks: int) -> None:
    """Byte by byte, in each of the kinds; the sharded strategies hold less of what they share."""
    for rank, pairs in enumerate(ranks.run(held_and_predicted, num_ranks=num_ranks)):
        for name, (held, expected) in pairs.items():
            fewer_rows = name == "fsdp" and rank > 0  # than rank 0, of parameters whose rows cannot be shared evenly
            assert held == (expected._replace(optimizer=held.optimizer) if fewer_rows else expected), name
            assert held.optimizer <= expected.optimizer
        whole, zero1, zero2, zero3 = (pairs[name][0] for name in ("none", "zero1", "zero2", "zero3"))
        assert whole.optimizer == 2 * whole.parameters
        assert zero1.optimizer == zero2.optimizer == 2 * zero2.gradients
        assert zero2.gradients < whole.gradients / num_ranks * 1.01 < zero1.gradients
        assert zero3.parameters == zero3.gradients < whole.parameters / num_ranks * 1.01 < zero2.parameters


@pytest.mark.parametrize("layers", [((0,), (1,)), ((0, 1), (1, 2)), ()])
@pytest.mark.parametrize("name", ["zero3", "fsdp"])
def test_layers_have_every_parameter_once(name: str, layers: tuple[tuple[int, ...], ...]) -> None:
    """Beside the rest."""
    profile = StepProfile(tuple(Parameter(f"p{index}", 250, 0.0) for index in range(4)), 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="^. parameters in layers: must be all 4, once$"):
        predict_memory(name, profile, 2, 2, 0, ModelParts([(25, 10)] * 4, layers=layers, rest=(3,)))


@pytest.mark.parametrize("name", ["powersgd", "fsdp"])
def test_shapes_must_be_those_of_all_parameters(name: str) -> None:
    """A profile does not have them."""
    profile = StepProfile((Parameter("p", 250, 0.0),), 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match=f"^{name}: 0 shapes of parameters: must be 1$"):
        predict_memory(name, profile, 2, 2, 0)


class Squares(nn.Module):
    """Saves its input of 5 numbers once, as a product with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (5,)."""
        return self.scale * x


def test_parameters_are_no_activations(ranks: RankPool) -> None:
    """Of a product autograd saves both factors; only the input counts."""
    assert ranks.run(saved_of_a_product, num_ranks=1) == [20]


def saved_of_a_product(group: dist.ProcessGroup) -> int:
    """The bytes that are saved by a model of one product."""
    train_step = TrainStep(TASK, StepConfig(batch_size=3, strategy="none"), group)
    train_step.model.model = Squares()
    train_step.loss = lambda _: train_step.model.model(torch.ones(5))  # type: ignore[method-assign]
    return activation_bytes(train_step)
