"""The fuzzer itself, on an attack with a planted fault; a few cases of each attack; and two minutes of all."""

import importlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.forked import ROOT, nursery
from tests.fuzz import deaths, mutants
from tests.fuzz.attacks import Attack, attacks
from tests.fuzz.campaign import Campaign
from tests.fuzz.case import describe, expression, fault_of
from tests.processes import run_python
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


def test_cases_combine_what_is_rare() -> None:
    """What hypothesis draws by itself is: of 1,000 collectives 55 use several threads."""
    drawn: list[str] = []
    (attack,) = attacks(("collectives",))
    campaign_of(Attack(attack.name, partial(noted, drawn, attack)), cases=400)
    assert sum("threads=True" in case for case in drawn) > len(drawn) * 0.15


def test_the_same_seed_gives_the_same_cases() -> None:
    """And another one others."""
    drawn = []
    for seed in (SEED, SEED, SEED + 1):
        cases: list[str] = []
        for attack in attacks():
            campaign_of(Attack(attack.name, partial(noted, cases, attack)), seed=seed, cases=5)
        drawn.append(cases)
    assert drawn[0] == drawn[1] != drawn[2]


def noted(cases: list[str], attack: Attack, random: random.Random) -> Planted:
    """Draw a case and write it down; return one that never fails."""
    cases.append(expression(attack.draw_case(random)))
    return Planted((0,))


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


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.fuzz`."""
    return run_python("-m", "tests.fuzz", *arguments)


def test_the_command_prints_its_seed_and_a_table() -> None:
    """Exit code 0 without faults; 2 for an attack that there is not."""
    good = command("--only", "mutants", "--cases", "3")
    assert good.returncode == 0, good.stderr
    assert good.stdout.startswith("seed ")
    assert "mutants            3" in good.stdout
    bad = command("--only", "nonsense")
    assert bad.returncode == 2
    assert "attack 'nonsense': must be one of mutants, " in bad.stderr


def test_every_attack_begins() -> None:
    """Without pytest, which finds more modules."""
    result = command("--seconds", "0", "--seed", "1")
    assert (result.returncode, result.stderr) == (0, "")
    assert all(f"{attack.name}: 0 cases, 0 faults" in result.stdout for attack in attacks())


def test_exit_code_1_for_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a proof that accepts everything."""
    from click.testing import CliRunner

    from tests.fuzz import __main__ as program

    monkeypatch.setattr(program, "DATABASE", tmp_path)
    monkeypatch.setattr(mutants, "verify", lambda _: None)
    result = CliRunner().invoke(program.main, ["--only", "mutants", "--cases", "30", "--seed", "7"])
    assert result.exit_code == 1
    assert "to run it again:\nfrom tests.fuzz.mutants import *\nMutant(" in result.output


@pytest.mark.slow
def test_a_signal_stops_the_command_with_its_table(tmp_path: Path) -> None:
    """And no process is left."""
    with (tmp_path / "said").open("w+") as said:
        line = [sys.executable, "-u", "-m", "tests.fuzz", "--only", "collectives"]
        process = subprocess.Popen(line, cwd=ROOT, stdout=said, start_new_session=True)
        try:
            deadline_s = time.monotonic() + 120
            while not (started := _in_session(process.pid)) and time.monotonic() < deadline_s:
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 130
        finally:
            process.kill()
        said.seek(0)
        assert started
        assert "stopped\n\nattack" in said.read()
        deadline_s = time.monotonic() + 60
        while (left := _in_session(process.pid)) and time.monotonic() < deadline_s:
            time.sleep(0.1)  # on a busy machine they take a while to end
        assert left == []


def test_the_number_of_an_earlier_rank_may_come_again() -> None:
    """What is known of a process that had the number is nothing to the one that has it now."""
    home = nursery()
    home.codes.update(dict.fromkeys(range(1, 2**22), 3))
    home.stopped.update(range(1, 2**22))
    try:
        with Ranks(1, 60.0) as ranks:
            assert (ranks.processes[0].has_ended, ranks.processes[0].is_stopped) == (False, False)
    finally:
        home.codes.clear()
        home.stopped.clear()


def _in_session(leader: int) -> list[int]:
    """Its other processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            if pid != leader and os.getsid(pid) == leader:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


@pytest.mark.parametrize(("name", "cases"), [("mutants", 60), ("collectives", 12)])
def test_a_few_cases(name: str, cases: int) -> None:
    """Always the same ones."""
    campaign, said = campaign_of(*attacks((name,)), cases=cases)
    assert not campaign.faults, said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_minutes() -> None:
    """Of all attacks, from a seed of the day's own."""
    line = [sys.executable, "-m", "tests.fuzz", "--seconds", "120"]
    result = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


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
