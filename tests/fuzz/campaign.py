"""`Campaign`: one attack after the other for a given time, faults simplified and reported, and a table at the end."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Flaky

from tests.fuzz.attacks import Attack
from tests.fuzz.case import Case, Fault, describe, fault_of

BATCH = 100  # cases of one run of hypothesis, which remembers all of them
WAYS = 4  # of as many batches one has cases that can be simplified
MAX_SHRINKING_S = 90.0
NUM_IN_FULL = 2  # faults of a kind, which may have several causes
MAX_LINES = 40  # of a message; a rank's traceback may be long


class _CaseFailedError(Exception):
    """Tells hypothesis that a case fails."""


class _TimeIsUpError(KeyboardInterrupt):
    """Ends hypothesis in the middle of its work."""


@dataclass
class Tally:
    """What became of one attack: `signatures` counts the faults of each kind."""

    cases: int = 0
    seconds: float = 0.0
    signatures: Counter[str] = field(default_factory=Counter)


class Campaign:
    """Runs cases of several attacks, which hypothesis draws.

    Of every four batches of cases, hypothesis chooses each number of one, and can simplify what fails. It prefers
    small numbers, so that few of these cases are large or combine what is rare (of 1,000 collectives 55 use several
    threads; of 1,000 from plain random numbers, 290). In the other three it chooses the seed of a case only, and
    what fails there is reported as it is.

    seed: of the whole; the same seed gives the same cases in each attack, as long as none fails.
    say: is given every line that is to be read.
    database: a folder for cases that failed, with which the next campaign begins.
    """

    def __init__(
        self, attacks: Sequence[Attack], seed: int, say: Callable[[str], object], database: Path | None = None
    ) -> None:
        self.tallies = {attack.name: Tally() for attack in attacks}
        self._attacks = attacks
        self._seed = seed
        self._say = say
        self._database = database

    @property
    def faults(self) -> int:
        """Of all attacks."""
        return sum(tally.signatures.total() for tally in self.tallies.values())

    def run(self, seconds: float, max_cases: int | None = None) -> None:
        """Run for so long, or so many cases of each attack; ends what cases share whatever happens."""
        end_s = time.monotonic() + seconds
        shares = sum(attack.share for attack in self._attacks)
        try:
            for attack in self._attacks:
                began_s = time.monotonic()
                limit_s = (end_s - began_s) * attack.share / shares
                shares -= attack.share
                try:
                    self._run_attack(attack, began_s + limit_s, max_cases)
                finally:
                    self.tallies[attack.name].seconds = time.monotonic() - began_s
        finally:
            for attack in self._attacks:
                attack.close()

    def _run_attack(self, attack: Attack, end_s: float, max_cases: int | None) -> None:
        tally = self.tallies[attack.name]
        for batch in count():
            num_cases = BATCH if max_cases is None else min(BATCH, max_cases - tally.cases)
            if num_cases <= 0 or time.monotonic() >= end_s:
                self._say(f"{attack.name}: {tally.cases} cases, {tally.signatures.total()} faults")
                return
            how = settings(self._settings(attack, batch), max_examples=num_cases)
            _Batch(attack, tally, end_s, self._say).run(f"{self._seed}/{attack.name}/{batch}", how, _by_seed(batch))

    def _settings(self, attack: Attack, batch: int) -> settings:
        # Hypothesis forgets a case that fails no more, which it would take one for that is like earlier ones.
        is_first = batch < 2  # with the cases that failed in the last campaign: of either kind
        is_shrunk = attack.is_shrunk and not _by_seed(batch)
        folder = attack.name, "seeds" if _by_seed(batch) else "cases"
        return settings(
            database=self._database and DirectoryBasedExampleDatabase(self._database.joinpath(*folder)),
            deadline=None,
            phases=[Phase.generate, *[Phase.reuse] * is_first, *[Phase.shrink] * is_shrunk],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
        )

    def table(self) -> str:
        """Return a line for each attack, and below it its kinds of faults."""
        lines = [f"{'attack':12} {'cases':>7} {'seconds':>8} {'faults':>7}"]
        for name, tally in self.tallies.items():
            lines.append(f"{name:12} {tally.cases:7} {tally.seconds:8.0f} {tally.signatures.total():7}")
            lines += [f"  {number} x {signature}" for signature, number in tally.signatures.items()]
        return "\n".join(lines)


def _by_seed(batch: int) -> bool:
    return batch % WAYS > 0


@dataclass
class _Batch:
    """One run of hypothesis, which ends with the first fault that is to be reported in full.

    failed: the cases that failed alike, the simplest last.
    """

    attack: Attack
    tally: Tally
    end_s: float
    say: Callable[[str], object]
    failed: list[tuple[Case, Fault]] = field(default_factory=list)

    def run(self, seed: str, how: settings, by_seed: bool) -> None:
        """Draw cases until one fails, and report it; its simplest form if `how` asks for it.

        by_seed: hypothesis chooses a seed for each case, instead of each of its numbers.
        """

        @how  # outermost, as `seed` switches the database off
        @hypothesis.seed(seed)
        @given(st.randoms(use_true_random=by_seed).map(self.attack.draw_case))
        def attempt(case: Case) -> None:
            self._attempt(case)

        try:
            attempt()
        except _TimeIsUpError:
            pass
        except (_CaseFailedError, Flaky):  # Flaky: it does not fail when it is run once more
            if not self.failed:
                raise
        if self.failed:
            self._report_last()

    def _attempt(self, case: Case) -> None:
        if time.monotonic() > self.end_s:
            raise _TimeIsUpError
        if not self.failed:
            self.tally.cases += 1
        fault = fault_of(case)
        if fault is None or (self.failed and fault.signature != self.failed[0][1].signature):
            return
        if not self.failed:
            self.tally.signatures[fault.signature] += 1
            self.say(f"\nFAULT in {self.attack.name}, case {self.tally.cases}")
            if self.tally.signatures[fault.signature] > NUM_IN_FULL:
                self.say(f"  like earlier ones: {fault.signature}")
                return
            self.say(_beginning(fault))
            self.end_s = max(self.end_s, time.monotonic() + MAX_SHRINKING_S)
        self.failed.append((case, fault))
        raise _CaseFailedError

    def _report_last(self) -> None:
        case, fault = self.failed[-1]
        if len(self.failed) == 1:
            self.say(f"it has not failed again; the whole case:\n{describe(case)}")
        else:
            self.say(f"to run it again:\n{describe(case)}\n{_beginning(fault)}")


def _beginning(fault: Fault) -> str:
    return "\n".join(fault.message.splitlines()[:MAX_LINES])
