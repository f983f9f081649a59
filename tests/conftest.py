"""Fixtures: ranks that are started once and given many cases."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.budget import Budget, slowness
from tests.ranks import RankPool

# No deadline for an example: how long one takes says more of what else the machine is doing than of the code.
QUICK_EXAMPLES = 25
settings.register_profile("quick", deadline=None, max_examples=QUICK_EXAMPLES)
settings.register_profile("all", deadline=None, max_examples=150)  # pytest --hypothesis-profile=all
settings.load_profile("quick")

QUICK = Path(__file__).parent / "ringsim"  # thousands of tests, in files that hardly wait for anything


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make test`."""
    parser.addoption("--fail-over-budget", action="store_true", help="fail if a test takes far longer than it may")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the time that tests take, in the process that gathers their reports."""
    if not hasattr(config, "workerinput"):
        profile = settings.get_profile(config.getoption("--hypothesis-profile") or "quick")
        budget = Budget(slowness(), profile.max_examples / QUICK_EXAMPLES, config.getoption("--fail-over-budget"))
        config.pluginmanager.register(budget, "budget")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let files that take long begin first, so that at the end no worker waits long for the others.

    `make test` gives each worker of pytest-xdist one file after the other, in this order.
    """
    items.sort(key=lambda item: item.path.is_relative_to(QUICK))


@pytest.fixture(scope="session", autouse=True)
def _hearing_of_signals() -> None:
    """Under nohup SIGHUP is ignored, and in the background of a script SIGINT, also by what we start; tests send both.

    (POSIX has `sh -c 'make test &'` start it so.)
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Five ranks on Gloo for the whole session; a case may use only the first few of them."""
    with RankPool(5) as pool:
        yield pool


@pytest.fixture(scope="session")
def ring_ranks() -> Iterator[RankPool]:
    """Four ranks with groups on Gloo and on our own backend."""
    with RankPool(4, backends=("gloo", "ring")) as pool:
        yield pool
