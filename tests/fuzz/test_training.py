"""The attack on training runs, with a case or two of it."""

import random
from collections.abc import Iterator

import pytest

from tests.fuzz.run_damage import Damage
from tests.fuzz.training import DisturbedRun, Round, close, draw_case


@pytest.fixture(scope="module", autouse=True)
def _closing() -> Iterator[None]:
    """Nothing is left of what cases share."""
    yield
    close()


@pytest.mark.slow
def test_a_drawn_case() -> None:
    """A rank is killed, and then files are damaged."""
    damages = (Damage("edit", 5), Damage("scribble into the log", 2))
    DisturbedRun("zero1", 7, 2, (Round("kill a rank", 1, 30, 0.01, damages),)).run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_other_cases(seed: int) -> None:
    """Of other seeds."""
    draw_case(random.Random(seed)).run()


def test_a_fault_is_found() -> None:
    """Were a damage not noticed, the case would fail."""
    from tests.fuzz import training

    with pytest.raises(AssertionError, match="the model is another one"):
        training.compare(training.Result("a", ()), training.Result("b", ()), [], damaged=False)
