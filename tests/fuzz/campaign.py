"""`Campaign`: attacks in turn for a given time, faults reduced and reported, and a table at the end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from tests.fuzz.attacks import Attack
from tests.fuzz.case import Case
from tests.fuzz.reducing import MAX_REDUCING_S, Fault, fault_of, reduced

PROGRESS_S = 30.0
NUM_IN_FULL = 2  # faults of a kind, which may have several causes
MAX_LINES = 40  # of a message; a rank's traceback may be long


@dataclass
class Tally:
    """What became of one attack: `signatures` counts the faults of each kind."""

    cases: int = 0
    seconds: float = 0.0
    signatures: dict[str, int] = field(default_factory=dict)

    @property
    def faults(self) -> int:
        """Of all kinds together."""
        return sum(self.signatures.values())


class Campaign:
    """Runs cases of several attacks, each drawn from a number of its own.

    seed: of the whole; the same seed gives the same cases in each attack.
    say: is given every line that is to be read.
    """

    def __init__(self, attacks: Sequence[Attack], seed: int, say: Callable[[str], object]) -> None:
        self.tallies = {attack.name: Tally() for attack in attacks}
        self._attacks = attacks
        self._seed = seed
        self._say = say
        self._began_s = self._told_s = time.monotonic()

    @property
    def faults(self) -> int:
        """Of all attacks."""
        return sum(tally.faults for tally in self.tallies.values())

    def run(self, seconds: float, max_cases: int | None = None) -> None:
        """Run for so long, or so many cases of each attack; ends what cases share whatever happens."""
        try:
            while time.monotonic() < self._began_s + seconds:
                attack = self._next(max_cases)
                if attack is None:
                    return
                self.run_case(attack, case_seed(self._seed, attack.name, self.tallies[attack.name].cases))
                self._tell_progress(seconds)
        finally:
            for attack in self._attacks:
                attack.close()

    def _next(self, max_cases: int | None) -> Attack | None:
        """The attack that has had the least of its share of the time."""
        waiting = [each for each in self._attacks if max_cases is None or self.tallies[each.name].cases < max_cases]
        return min(waiting, key=lambda attack: self.tallies[attack.name].seconds / attack.share, default=None)

    def run_case(self, attack: Attack, number: int) -> None:
        """Draw the case of that number, run it, and report it if it fails."""
        tally, began_s = self.tallies[attack.name], time.monotonic()
        tally.cases += 1
        try:
            case = attack.draw(number)
            fault = fault_of(case)
            if fault is not None:
                tally.signatures[fault.signature] = tally.signatures.get(fault.signature, 0) + 1
                self._report(attack, number, case, fault, tally)
        finally:
            tally.seconds += time.monotonic() - began_s

    def _report(self, attack: Attack, number: int, case: Case, fault: Fault, tally: Tally) -> None:
        """The first faults of a kind in full, others in a line."""
        self._say(f"\nFAULT in {attack.name}: --case {attack.name}:{number}")
        if tally.signatures[fault.signature] > NUM_IN_FULL:
            self._say(f"  like earlier ones: {fault.signature}")
            return
        self._say("\n".join(fault.message.splitlines()[:MAX_LINES]))
        began_s = time.monotonic()
        again = fault_of(case)
        case_s = time.monotonic() - began_s
        if again is None:
            self._say("it does not fail when run once more; the whole case:")
            self._say(case.describe())
            return
        case, fault = reduced(case, again, MAX_REDUCING_S + 4 * case_s)
        self._say(f"reduced to:\n{case.describe()}")
        self._say("\n".join(fault.message.splitlines()[:MAX_LINES]))

    def _tell_progress(self, seconds: float) -> None:
        now_s = time.monotonic()
        if now_s >= self._told_s + PROGRESS_S:
            self._told_s = now_s
            counts = ", ".join(f"{name} {tally.cases}" for name, tally in self.tallies.items())
            self._say(f"{now_s - self._began_s:.0f} of {seconds:.0f} s: cases {counts}; faults {self.faults}")

    def table(self) -> str:
        """A line for each attack, and below it its kinds of faults."""
        lines = [f"{'attack':12} {'cases':>7} {'seconds':>8} {'faults':>7}"]
        for name, tally in self.tallies.items():
            lines.append(f"{name:12} {tally.cases:7} {tally.seconds:8.0f} {tally.faults:7}")
            lines += [f"  {count} x {signature}" for signature, count in tally.signatures.items()]
        return "\n".join(lines)


def case_seed(seed: int, attack: str, index: int) -> int:
    """The number of the case of that index, in the campaign of that seed."""
    return int.from_bytes(sha256(f"{seed}/{attack}/{index}".encode()).digest()[:6])
