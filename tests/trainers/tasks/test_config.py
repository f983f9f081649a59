"""Bad options are refused by name before torch is loaded."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from trainers.tasks.config import ModelConfig, check_learning_rate, check_seed


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
    ("check", "value", "message"),
    [
        (check_learning_rate, 0.0, "--learning-rate 0.0: must be finite and greater than 0"),
        (check_learning_rate, float("nan"), "--learning-rate nan: must be finite and greater than 0"),
        (check_learning_rate, float("inf"), "--learning-rate inf: must be finite and greater than 0"),
        (check_seed, -1, "--seed -1: must be at least 0 and less than 2**63"),
        (check_seed, 2**63, f"--seed {2**63}: must be at least 0 and less than 2**63"),
    ],
)
def test_what_all_tasks_have_is_checked(check: Callable[[float], None], value: float, message: str) -> None:
    """In one line with the option, its value and the rule."""
    with pytest.raises(ValueError, match=r"^--") as caught:
        check(value)
    assert str(caught.value) == message


def test_the_smallest_and_largest_values_are_accepted() -> None:
    """Each bound that a message names is itself allowed."""
    model = ModelConfig(vocabulary=2, d_model=2, heads=1, layers=1, d_ff=1, sequence_length=1)
    check_learning_rate(1e-12)
    check_seed(2**63 - 1)
    assert model.d_model == 2


def test_options_and_data_are_checked_without_torch() -> None:
    """A user's mistake is reported at once: importing torch would make it wait for seconds."""
    body = """
import sys
from trainers.tasks.config import ModelConfig
from trainers.tasks.lm import read_tokens
read_tokens("topics", ModelConfig(), seed=0)
read_tokens("random", ModelConfig(), seed=0)
print([name for name in ("torch", "matplotlib") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
