"""The fuzzer itself, on an attack with a planted fault; a few cases of each attack; and a minute of all."""

import importlib
import random
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.forked import nursery
from tests.fuzz import __main__ as program
from tests.fuzz import deaths, mutants
from tests.fuzz.attacks import Attack, attacks
from tests.fuzz.campaign import Campaign
from tests.fuzz.case import describe, expression, fault_of
from tests.processes import TIMEOUT_S, below, finish, left_of, run_python, start_python
from tests.ranks import Ranks

SEED = 7


@dataclass(frozen=True)
class Planted:
    """Fails if any of its numbers is above 90."""

    numbers: tuple[int, ...]

    def run(self) -> None:
        assert max(self.numbers) <= 90, f"{len(self.numbers)} numbers, one above 90"


def planted(random: random.Random) -> Planted:
    """Draw up to five numbers below 100."""
    return Planted(tuple(random.randrange(100) for _ in range(random.randint(1, 5))))


def campaign_of(*chosen: Attack, seed: int = SEED, cases: int = 60) -> tuple[Campaign, str]:
    """Run it; and what it said."""
    lines: list[str] = []
    campaign = Campaign(chosen, seed, lines.append)
    campaign.run(seconds=300, max_cases=cases)
    return campaign, "\n".join(lines)


def test_a_planted_fault_is_shrunk_and_reported() -> None:
    """To the one number that fails, or whole if a seed drew it; a third of its kind in a line; and it goes on."""
    campaign, said = campaign_of(Attack("planted", planted))
    signatures = campaign.tallies["planted"].signatures
    assert campaign.tallies["planted"].cases == 60
    assert set(signatures) == {"# numbers, one above #"}
    assert campaign.faults > 2
    lines = "from tests.fuzz.test_fuzz import *\nPlanted(numbers=(91,)).run()"
    assert said.count(f"to run it again:\n{lines}\n1 numbers, one above 90") == 1
    assert said.count("to run it again:\n") == 2
    assert said.count("like earlier ones: # numbers, one above #") == campaign.faults - 2
    assert f"{campaign.faults} x # numbers, one above #" in campaign.table()


def test_where_time_decides_a_case_is_only_run_once_more() -> None:
    """And reported whole: with the numbers that were drawn."""
    runs = []

    def drawn(random: random.Random) -> Planted:
        runs.append(planted(random))
        return runs[-1]

    campaign, said = campaign_of(Attack("planted", drawn, is_shrunk=False))
    failing = next(case for case in runs if max(case.numbers) > 90)
    assert f"to run it again:\n{describe(failing)}\n" in said
    assert len(runs) == campaign.tallies["planted"].cases + 2


def test_a_case_that_fails_only_once_is_reported_whole() -> None:
    """Whoever reads the report is told so."""
    times = []

    @dataclass(frozen=True)
    class Once(Planted):
        def run(self) -> None:
            times.append(1)
            assert len(times) != 5, "once"

    campaign, said = campaign_of(Attack("once", lambda random: Once((random.randrange(9),))), cases=9)
    assert campaign.faults == 1
    assert "it has not failed again; the whole case:\nfrom tests.fuzz.test_fuzz import *\nOnce(numbers=(" in said


def test_the_next_campaign_begins_with_what_failed(tmp_path: Path) -> None:
    """From a database of hypothesis, of either kind of case; only as long as it fails."""
    for seed in (SEED, SEED + 1):
        campaign = Campaign([Attack("planted", planted)], seed, print, tmp_path)
        campaign.run(seconds=300, max_cases=60 if seed == SEED else 2)
        assert campaign.faults >= 2


def drawn(seed: int, cases: int, *chosen: Attack) -> list[str]:
    """The cases of a campaign, which are not run."""
    drawn: list[str] = []

    def noted(attack: Attack, random: random.Random) -> Planted:
        drawn.append(expression(attack.draw_case(random)))
        return Planted((0,))

    for attack in chosen:
        campaign_of(Attack(attack.name, partial(noted, attack)), seed=seed, cases=cases)
    return drawn


def test_cases_combine_what_is_rare() -> None:
    """What hypothesis draws by itself is: of 1,000 collectives 55 use several threads."""
    cases = drawn(SEED, 400, *attacks(("collectives",)))
    assert sum("threads=True" in case for case in cases) > len(cases) * 0.15


def test_the_same_seed_gives_the_same_cases() -> None:
    """And another one others."""
    assert drawn(SEED, 5, *attacks()) == drawn(SEED, 5, *attacks()) != drawn(SEED + 1, 5, *attacks())


def test_attacks_end_what_their_cases_share() -> None:
    """Also after a campaign is stopped in the middle."""
    closed = []

    def stopping(_: random.Random) -> Planted:
        raise KeyboardInterrupt

    attack = Attack("stopping", stopping, close=lambda: closed.append(True))
    with pytest.raises(KeyboardInterrupt):
        campaign_of(attack)
    assert closed == [True]


def test_a_hang_is_a_fault() -> None:
    """A case that does not end is ended."""

    class Hanging(Planted):
        def run(self) -> None:
            time.sleep(60)

    fault = fault_of(Hanging((1,)), limit_s=0.1)
    assert fault is not None
    assert "hangs" in fault.message


@pytest.mark.parametrize("attack", attacks(), ids=[attack.name for attack in attacks()])
def test_a_case_can_be_read_back(attack: Attack) -> None:
    """The expression in a report is the case."""
    for seed in range(10):
        case = attack.draw_case(random.Random(seed))
        assert case == attack.draw_case(random.Random(seed))
        names = vars(importlib.import_module(f"tests.fuzz.{attack.name}"))
        assert eval(expression(case), dict(names)) == case


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("--only mutants --cases 3", 0, "mutants            3"),
        ("--only nonsense", 2, "attack 'nonsense': must be one of mutants, "),
        ("--only mutants --cases 30 --seed 7", 1, "to run it again:\nfrom tests.fuzz.mutants import *\nMutant("),
    ],
)
def test_the_command(arguments: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It ends with a table; or with the attacks that there are; or, as the proof accepts everything, with a fault."""
    monkeypatch.setattr(program, "DATABASE", tmp_path)
    if code == 1:
        monkeypatch.setattr(mutants, "verify", lambda _: None)
    done = CliRunner().invoke(program.main, arguments.split())
    assert (done.exit_code, said in done.output) == (code, True), done.output


def test_every_attack_begins() -> None:
    """Without pytest, which finds more modules."""
    done = run_python("-m", "tests.fuzz", "--seconds", "0", "--seed", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("seed 1, 0 s: ")
    assert all(f"{attack.name}: 0 cases, 0 faults" in done.stdout for attack in attacks())


@pytest.mark.slow
def test_a_signal_stops_the_command_with_its_table() -> None:
    """And no process is left."""
    process = start_python("-m", "tests.fuzz", "--only", "collectives")
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (started := below(process.pid)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    done = finish(process)
    assert started
    assert done.returncode == 130
    assert "stopped\n\nattack" in done.stdout
    assert left_of(started) == []


def test_the_number_of_an_earlier_rank_may_come_again() -> None:
    """What is known of a process that had the number is nothing to the one that has it now."""
    home, last = nursery(), int(Path("/proc/loadavg").read_text().split()[-1])
    home.codes.update(dict.fromkeys(range(last, last + 10_000), 3))
    home.stopped.update(range(last, last + 10_000))
    try:
        with Ranks(1, 60.0) as ranks:
            assert (ranks.processes[0].has_ended, ranks.processes[0].is_stopped) == (False, False)
    finally:
        home.codes.clear()
        home.stopped.clear()


@pytest.mark.parametrize(("name", "cases"), [("mutants", 60), ("collectives", 12)])
def test_a_few_cases(name: str, cases: int) -> None:
    """Always the same ones."""
    campaign, said = campaign_of(*attacks((name,)), cases=cases)
    assert not campaign.faults, said


@pytest.mark.slow
def test_one_minute() -> None:
    """Of all attacks, from a seed of the day's own."""
    done = run_python("-m", "tests.fuzz", "--seconds", "60")
    assert done.returncode == 0, done.stdout + done.stderr


def test_ranks_that_do_not_get_ready_are_started_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine does before the attack begins is no fault, unless it happens twice."""
    tries = []

    def refuse(*_: object) -> None:
        tries.append(1)
        raise deaths.NotReadyError("ranks do not get ready")

    monkeypatch.setattr(deaths.Death, "_prepare", refuse)
    death = deaths.draw_case(random.Random(SEED))
    with pytest.raises(deaths.NotReadyError):
        death.run()
    assert len(tries) == 2
