"""The attack on training runs, with a case or two of it."""

import random
from collections.abc import Iterator

import pytest

from tests.fuzz import training
from tests.fuzz.run_damage import Damage
from tests.fuzz.training import DisturbedRun, Result, Round


@pytest.fixture(scope="module", autouse=True)
def _closing() -> Iterator[None]:
    """Nothing is left of what cases share."""
    yield
    training.close()


DAMAGES = (Damage("flip", 5), Damage("scribble into the log", 2))
KILLED = DisturbedRun("zero1", 7, 2, (Round("kill a rank", 1, 30, 0.01, DAMAGES),))


@pytest.mark.slow
@pytest.mark.parametrize("case", [KILLED, *(training.draw_case(random.Random(seed)) for seed in range(2))])
def test_a_case(case: DisturbedRun) -> None:
    """A rank is killed, and then files are damaged; and whatever is drawn."""
    case.run()


def test_a_fault_is_found() -> None:
    """Were a damage not noticed, the case would fail."""
    with pytest.raises(AssertionError, match="the model is another one"):
        training.compare(Result("a", ()), Result("b", ()), [], damaged=False)
