"""The time that tests may take: a plugin that names each unmarked test, and file of tests, that takes too long.

A test that needs longer is marked `slow`. A suite grows by seconds that nobody notices, so the limits are part of it.
They are those of two quiet cores, corrected by the speed of this machine. `make test` fails at a multiple of them; any
other run only names what is over them, since nobody knows what else runs on the machine of a check.
"""

import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

TEST_LIMIT_S = 3.0
FILE_LIMIT_S = 20.0
BUSY = 5.0  # other programs, and the other worker, may take most of the machine for a while
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
    """Adds up the times of tests that are not marked `slow`: of a test without its fixtures, of a file with them.

    scale: how many times as slow this machine is as the reference.
    examples: how many times as many examples hypothesis draws as with `make test`.
    fails: fail a run with something that takes `BUSY` times as long as it may.
    """

    def __init__(self, scale: float, examples: float = 1.0, fails: bool = True) -> None:
        self._scale, self._examples, self._fails = scale, examples, fails
        self._tests_s: defaultdict[str, float] = defaultdict(float)
        self._files_s: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of one phase of a test."""
        if "slow" in report.keywords:
            return
        is_drawn = report.when == "call" and "hypothesis" in report.keywords
        duration_s = report.duration / self._examples if is_drawn else report.duration
        self._files_s[report.nodeid.partition("::")[0]] += duration_s
        if report.when == "call":
            self._tests_s[report.nodeid] += duration_s

    def longer_than(self, scale: float) -> Iterator[str]:
        """Yield a line for each test and each file that takes more than `scale` times its limit, longest first."""
        for kind, times_s, limit_s in (("test", self._tests_s, TEST_LIMIT_S), ("file", self._files_s, FILE_LIMIT_S)):
            for name, duration_s in sorted(times_s.items(), key=lambda item: -item[1]):
                if duration_s > limit_s * scale:
                    yield f"{duration_s:6.1f} s  {name}: a {kind} has {limit_s:g} s, unless it is marked slow"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run, if it is to fail, if something takes far too long."""
        if self._fails and session.exitstatus == pytest.ExitCode.OK and any(self.longer_than(BUSY * self._scale)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name everything that is over its limit, and first what fails the run."""
        far = list(self.longer_than(BUSY * self._scale))
        late = [line for line in self.longer_than(self._scale) if line not in far]
        title = f"the budget of time (this machine: {self._scale:.2f} times as slow)"
        consequence = ": the run fails" if self._fails else ""
        for heading, lines in ((f"over {BUSY:g} times {title}{consequence}", far), (f"over {title}", late)):
            if lines:
                terminalreporter.section(heading)
            for line in lines:
                terminalreporter.line(line)
