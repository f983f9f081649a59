"""Bad options are refused by name before torch is loaded."""

import subprocess
import sys
from typing import Any

import pytest

from trainers.tasks.config import ModelConfig, TrainConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 1}, "--vocabulary 1: must be at least 2"),
        ({"d_model": 0}, "--d-model 0: must be at least 2"),
        ({"heads": 0}, "--heads 0: must be at least 1"),
        ({"layers": 0}, "--layers 0: must be at least 1"),
        ({"d_ff": -3}, "--d-ff -3: must be at least 1"),
        ({"sequence_length": 0}, "--sequence-length 0: must be at least 1"),
        ({"d_model": 130}, "--d-model 130: must be divisible by --heads 4"),
        (
            {"d_model": 15, "heads": 3},
            "--d-model 15: must be even (positions are pairs of a sine and a cosine)",
        ),
    ],
)
def test_model_config_refuses(options: dict[str, int], message: str) -> None:
    """A model that cannot be built is refused in one line with the option, its value and the rule."""
    with pytest.raises(ValueError, match=r"^--") as caught:
        ModelConfig(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "--batch-size 0: must be at least 1"),
        ({"steps": 0}, "--steps 0: must be at least 1"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0: must be finite and greater than 0"),
        ({"learning_rate": float("nan")}, "--learning-rate nan: must be finite and greater than 0"),
        ({"learning_rate": float("inf")}, "--learning-rate inf: must be finite and greater than 0"),
        ({"seed": -1}, "--seed -1: must be at least 0 and less than 2**63"),
        ({"seed": 2**63}, f"--seed {2**63}: must be at least 0 and less than 2**63"),
    ],
)
def test_train_config_refuses(options: dict[str, Any], message: str) -> None:
    """A run that cannot be done is refused in one line with the option, its value and the rule."""
    with pytest.raises(ValueError, match=r"^--") as caught:
        TrainConfig(**options)
    assert str(caught.value) == message


def test_the_smallest_and_largest_values_are_accepted() -> None:
    """Each bound that a message names is itself allowed."""
    model = ModelConfig(vocabulary=2, d_model=2, heads=1, layers=1, d_ff=1, sequence_length=1)
    train = TrainConfig(batch_size=1, steps=1, learning_rate=1e-12, seed=2**63 - 1)
    assert (model.d_model, train.seed) == (2, 2**63 - 1)


def test_options_and_data_are_checked_without_torch() -> None:
    """A user's mistake is reported at once: importing torch would make it wait for seconds."""
    body = """
import sys
from trainers.tasks.config import ModelConfig
from trainers.tasks.data import load_tokens
load_tokens("topics", ModelConfig(), num_ranks=4, seed=0)
load_tokens("random", ModelConfig(), num_ranks=4, seed=0)
print([name for name in ("torch", "matplotlib") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
