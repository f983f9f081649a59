"""The fuzzer itself, on an attack with a planted fault; a few cases; and a minute of all attacks."""

import importlib
import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.forked import nursery
from tests.fuzz import __main__ as program
from tests.fuzz import files
from tests.fuzz.campaign import SHARES, Attack, Campaign, attacks
from tests.fuzz.case import expression, fault_of
from tests.fuzz.readers import Outcome
from tests.processes import run_python
from tests.ranks import Ranks

SEED = 7


@dataclass(frozen=True)
class Planted:
    """Fails if any of its numbers is above 90."""

    numbers: tuple[int, ...]
    more: int = 0

    def run(self) -> None:
        assert max(self.numbers, default=0) <= 90, f"{len(self.numbers)} numbers, one above 90"


def planted(random: random.Random) -> Planted:
    """Draw up to five numbers below 100."""
    return Planted(tuple(random.randrange(100) for _ in range(random.randint(1, 5))), random.randint(1, 9))


def campaign_of(*chosen: Attack, seed: int = SEED, cases: int = 60) -> tuple[Campaign, str]:
    """Run it; and return its output."""
    lines: list[str] = []
    campaign = Campaign(chosen, seed, lines.append)
    campaign.run(seconds=300, max_cases=cases)
    return campaign, "\n".join(lines)


def test_a_planted_fault_is_simplified_and_reported() -> None:
    """To the one number that fails; the third of a kind is a line, and the campaign goes on."""
    campaign, said = campaign_of(Attack("planted", planted))
    tally = campaign.tallies["planted"]
    assert (tally.cases, set(tally.signatures)) == (60, {"# numbers, one above #"})
    assert campaign.faults > 2
    reports = said.split("to run it again:\nfrom tests.fuzz.test_fuzz import *\nPlanted(numbers=(9")[1:]
    assert [report[1:].startswith(",)).run()\n1 numbers, one above 90\n") for report in reports] == [True] * 2
    assert said.count("like earlier ones: # numbers, one above #") == campaign.faults - 2
    assert f"{campaign.faults} x # numbers, one above #" in campaign.table()


def test_attacks_end_what_their_cases_share() -> None:
    """Also after a campaign is stopped in the middle."""
    closed = []

    def stopping(_: random.Random) -> Planted:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        campaign_of(Attack("stopping", stopping, close=lambda: closed.append(True)))
    assert closed == [True]


def test_a_hang_is_a_fault() -> None:
    """A case that does not end is ended."""

    class Hanging(Planted):
        def run(self) -> None:
            time.sleep(60)

    fault = fault_of(Hanging((1,)), limit_s=0.1)
    assert "hangs" in fault.message  # type: ignore[union-attr]


@pytest.mark.parametrize("attack", attacks(), ids=SHARES)
def test_a_case_is_drawn_again_from_its_seed_and_read_back_from_its_report(attack: Attack) -> None:
    """The expression in a report is the case."""
    cases = [attack.draw_case(random.Random(seed)) for seed in range(10)]
    assert cases == [attack.draw_case(random.Random(seed)) for seed in range(10)]
    names = vars(importlib.import_module(f"tests.fuzz.{attack.name}"))
    assert cases == [eval(expression(case), dict(names)) for case in cases]
    assert len({expression(case) for case in cases}) > 1


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("--cases 3", 0, "\nfiles              3 "),
        ("--cases 3 --seed 7", 1, "to run it again:\nfrom tests.fuzz.files import *\nHostileFile("),
    ],
)
def test_the_command(options: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with a table; or, as no file is refused in a line, with a fault."""
    if code == 1:
        monkeypatch.setattr(files, "_outcome", lambda *_: Outcome(2, "", ""))
    done = CliRunner().invoke(program.main, ["--only", "files", *options.split()])
    assert (done.exit_code, said in done.output) == (code, True), done.output


def test_the_number_of_an_earlier_rank_may_come_again() -> None:
    """The state of an earlier process with this number is not that of the process that has it now."""
    home, last = nursery(), int(Path("/proc/loadavg").read_text().split()[-1])
    home.codes.update(dict.fromkeys(range(last, last + 10_000), 3))
    home.stopped.update(range(last, last + 10_000))
    try:
        with Ranks(1, 60.0) as ranks:
            assert (ranks.processes[0].has_ended, ranks.processes[0].is_stopped) == (False, False)
    finally:
        home.codes.clear()
        home.stopped.clear()


def test_a_few_collectives() -> None:
    """Always the same ones."""
    campaign, said = campaign_of(*attacks(["collectives"]), cases=8)
    assert not campaign.faults, said


@pytest.mark.slow
def test_one_minute() -> None:
    """Of all attacks, from a seed of the day's own."""
    done = run_python("-m", "tests.fuzz", "--seconds", "60")
    assert done.returncode == 0, done.stdout + done.stderr
