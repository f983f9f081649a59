"""The time that tests may take: a plugin that names each unmarked test, and file of tests, that takes too long.

A test that needs longer is marked `slow`. A suite grows by seconds that nobody notices, so the limits are part of it.
They are those of two quiet cores, corrected by the speed of this machine.
"""

import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

TEST_LIMIT_S = 3.0
FILE_LIMIT_S = 20.0
REFERENCE_S = 0.058  # `_work` on a quiet AMD EPYC of 2.4 GHz, Python 3.11


def _work() -> int:
    return sum(number * number % 7 for number in range(1_000_000))


def slowness() -> float:
    """Return how many times as long this machine takes as the reference, at least 1."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        _work()
        times.append(time.perf_counter() - began)
    return max(1.0, min(times) / REFERENCE_S)


class Budget:
    """Adds up the times of tests that are not marked `slow`: of a test without its fixtures, of a file with them."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._tests_s: defaultdict[str, float] = defaultdict(float)
        self._files_s: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of one phase of a test."""
        if "slow" in report.keywords:
            return
        self._files_s[report.nodeid.partition("::")[0]] += report.duration
        if report.when == "call":
            self._tests_s[report.nodeid] += report.duration

    def longer_than(self, scale: float) -> Iterator[str]:
        """Yield a line for each test and each file that takes more than `scale` times its limit, longest first."""
        for kind, times_s, limit_s in (("test", self._tests_s, TEST_LIMIT_S), ("file", self._files_s, FILE_LIMIT_S)):
            for name, duration_s in sorted(times_s.items(), key=lambda item: -item[1]):
                if duration_s > limit_s * scale:
                    yield f"{duration_s:6.1f} s  {name}: a {kind} has {limit_s:g} s, unless it is marked slow"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name everything that is over its limit."""
        late = list(self.longer_than(self._scale))
        if late:
            terminalreporter.section(f"over the budget of time (this machine: {self._scale:.2f} times as slow)")
            for line in late:
                terminalreporter.line(line)
