"""`Campaign`: one attack after the other for a given time, faults simplified and reported, and a table at the end."""

import importlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.fuzz.case import Case, Fault, describe, fault_of, simplest

MAX_SIMPLIFYING_S = 90.0
NUM_IN_FULL = 2  # faults of a kind, which may have several causes
MAX_LINES = 40  # of a message; a rank's traceback may be long
SHARES = {"collectives": 3, "deaths": 3, "files": 1, "training": 2, "strategies": 3}  # of the time; each is a module


@dataclass(frozen=True)
class Attack:
    """A module that draws cases.

    share: of the time, in relation to the shares of the others.
    close: ends what cases share, such as processes.
    """

    name: str
    draw_case: Callable[[random.Random], Case]
    share: float = 1.0
    close: Callable[[], None] = lambda: None


def attacks(names: Iterable[str] = SHARES) -> list[Attack]:
    """Return the attacks of these names, whose modules are loaded now: to import torch takes seconds."""
    modules = {name: importlib.import_module(f"tests.fuzz.{name}") for name in names}
    return [
        Attack(name, module.draw_case, SHARES[name], getattr(module, "close", Attack.close))
        for name, module in modules.items()
    ]


@dataclass
class Tally:
    """The result of one attack: `signatures` counts the faults of each kind."""

    cases: int = 0
    seconds: float = 0.0
    signatures: Counter[str] = field(default_factory=Counter)


class Campaign:
    """Runs cases of several attacks.

    seed: of the whole; the same seed gives the same cases in each attack.
    say: is given every line that is to be read.
    """

    def __init__(self, attacks: Sequence[Attack], seed: int, say: Callable[[str], object]) -> None:
        self.tallies = {attack.name: Tally() for attack in attacks}
        self._attacks = attacks
        self._seed = seed
        self._say = say

    @property
    def faults(self) -> int:
        """The number of faults of all attacks."""
        return sum(tally.signatures.total() for tally in self.tallies.values())

    def run(self, seconds: float, max_cases: int | None = None) -> None:
        """Run for so long, or so many cases of each attack; ends what cases share whatever happens."""
        end_s = time.monotonic() + seconds
        shares = sum(attack.share for attack in self._attacks)
        try:
            for attack in self._attacks:
                began_s = time.monotonic()
                try:
                    self._run_attack(attack, began_s + (end_s - began_s) * attack.share / shares, max_cases)
                finally:
                    self.tallies[attack.name].seconds = time.monotonic() - began_s
                shares -= attack.share
        finally:
            for attack in self._attacks:
                attack.close()

    def _run_attack(self, attack: Attack, end_s: float, max_cases: int | None) -> None:
        tally = self.tallies[attack.name]
        while time.monotonic() < end_s and tally.cases != max_cases:
            case = attack.draw_case(random.Random(f"{self._seed}/{attack.name}/{tally.cases}"))
            tally.cases += 1
            if fault := fault_of(case):
                self._say(f"\nFAULT in {attack.name}, case {tally.cases}")
                tally.signatures[fault.signature] += 1
                self._report(case, fault, tally.signatures[fault.signature])
        self._say(f"{attack.name}: {tally.cases} cases, {tally.signatures.total()} faults")

    def _report(self, case: Case, fault: Fault, number: int) -> None:
        if number > NUM_IN_FULL:
            self._say(f"  like earlier ones: {fault.signature}")
            return
        self._say(_beginning(fault))
        case, fault = simplest(case, fault, time.monotonic() + MAX_SIMPLIFYING_S)
        self._say(f"to run it again:\n{describe(case)}\n{_beginning(fault)}")

    def table(self) -> str:
        """Return a line for each attack, and below it its kinds of faults."""
        lines = [f"{'attack':12} {'cases':>7} {'seconds':>8} {'faults':>7}"]
        for name, tally in self.tallies.items():
            lines.append(f"{name:12} {tally.cases:7} {tally.seconds:8.0f} {tally.signatures.total():7}")
            lines += [f"  {number} x {signature}" for signature, number in tally.signatures.items()]
        return "\n".join(lines)


def _beginning(fault: Fault) -> str:
    return "\n".join(fault.message.splitlines()[:MAX_LINES])
