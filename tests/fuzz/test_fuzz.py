"""The fuzzer itself, on an attack with a planted fault; a few cases of each attack; and ten minutes of all."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fuzz import deaths, mutants
from tests.fuzz.attacks import Attack, attacks
from tests.fuzz.campaign import Campaign, case_seed
from tests.fuzz.case import expression
from tests.fuzz.mutants import Edit, Mutant
from tests.fuzz.ranks import ROOT, Ranks, nursery
from tests.fuzz.reducing import fault_of, reduced

SEED = 7


@dataclass(frozen=True)
class Planted:
    """Fails if any of its numbers is above 90."""

    numbers: tuple[int, ...]

    def describe(self) -> str:
        return repr(self)

    def run(self) -> None:
        assert max(self.numbers) <= 90, f"{len(self.numbers)} numbers, one above 90"

    def smaller(self) -> "Iterator[Planted]":
        """Without one of the numbers, or with one less by one."""
        for index, number in enumerate(self.numbers):
            rest = self.numbers[:index], self.numbers[index + 1 :]
            if len(self.numbers) > 1:
                yield Planted((*rest[0], *rest[1]))
            yield Planted((*rest[0], number - 1, *rest[1]))


def planted(random: random.Random) -> Iterator[Planted]:
    """Five numbers below 100."""
    while True:
        yield Planted(tuple(random.randrange(100) for _ in range(5)))


def harmless(random: random.Random) -> Iterator[Planted]:
    """A number that never fails."""
    while True:
        yield Planted((random.randrange(90),))


def campaign_of(*chosen: Attack, seed: int = SEED, cases: int = 20) -> tuple[Campaign, str]:
    """Run it; and what it said."""
    lines: list[str] = []
    campaign = Campaign(chosen, seed, lines.append)
    campaign.run(seconds=300, max_cases=cases)
    return campaign, "\n".join(lines)


def test_a_planted_fault_is_reduced_and_reported() -> None:
    """To the one number that fails; a third of its kind in a line; and the campaign goes on."""
    campaign, said = campaign_of(Attack("planted", planted))
    assert campaign.tallies["planted"].cases == 20
    assert campaign.faults > 2
    assert said.count("reduced to:\nPlanted(numbers=(91,))") == 2
    assert said.count("like earlier ones: # numbers, one above #") == campaign.faults - 2
    assert f"{campaign.faults} x # numbers, one above #" in campaign.table()


def test_a_case_is_known_by_its_number() -> None:
    """The number in a report gives the case that failed."""
    _, said = campaign_of(Attack("planted", planted))
    number = int(said.partition("--case planted:")[2].split()[0])
    assert fault_of(Attack("planted", planted).draw(number)) is not None


def test_the_same_seed_gives_the_same_cases() -> None:
    """And another one others."""
    campaigns = [campaign_of(Attack("planted", planted), seed=seed)[1] for seed in (SEED, SEED, SEED + 1)]
    assert campaigns[0] == campaigns[1] != campaigns[2]
    drawn = [[attack.draw(case_seed(SEED, attack.name, n)).describe() for n in range(5)] for attack in attacks()]
    again = [[attack.draw(case_seed(SEED, attack.name, n)).describe() for n in range(5)] for attack in attacks()]
    assert drawn == again


def test_attacks_end_what_their_cases_share() -> None:
    """Also after a campaign is stopped in the middle."""
    closed = []

    def stopping(_: random.Random) -> Iterator[Planted]:
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


def test_reducing_is_bounded() -> None:
    """By a number of tries, as a case may have more smaller ones than anybody can try."""
    case = Planted((99, 99))
    fault = fault_of(case)
    assert fault is not None
    assert reduced(case, fault, max_tries=2)[0] == Planted((98,))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.fuzz`."""
    line = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)


def test_the_command_prints_its_seed_and_a_table() -> None:
    """Exit code 0 without faults; 2 for an attack that there is not."""
    good = command("--only", "mutants", "--cases", "3")
    assert good.returncode == 0, good.stderr
    assert good.stdout.startswith("seed ")
    assert "mutants            3" in good.stdout
    bad = command("--only", "nonsense")
    assert bad.returncode == 2
    assert "attack 'nonsense': must be one of mutants, " in bad.stderr


@pytest.mark.parametrize("name", [attack.name for attack in attacks(())])
def test_every_attack_begins_by_itself(name: str) -> None:
    """Without pytest, which finds more modules."""
    result = command("--only", name, "--seconds", "0", "--seed", "1")
    assert (result.returncode, result.stderr) == (0, "")


def test_exit_code_1_for_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proof that accepts everything."""
    from click.testing import CliRunner

    from tests.fuzz.__main__ import main

    monkeypatch.setattr(mutants, "verify", lambda _: None)
    result = CliRunner().invoke(main, ["--only", "mutants", "--cases", "30", "--seed", "7"])
    assert result.exit_code == 1
    assert "reduced to:\nfrom tests.fuzz.mutants import Edit, Mutant" in result.output


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
            assert (ranks.has_ended(0), ranks.is_stopped(0)) == (False, False)
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


def test_a_case_can_be_read_back() -> None:
    """The expression in a report is the case."""
    case = Mutant("all_reduce", "ring/2", 3, (Edit("drop", 1, 2), Edit("src", 3, other=4)))
    assert eval(expression(case)) == case


@pytest.mark.parametrize(("name", "cases"), [("mutants", 60), ("collectives", 12)])
def test_a_few_cases(name: str, cases: int) -> None:
    """Always the same ones."""
    before = multiprocessing.active_children()  # other tests' ranks, which are kept for the whole session
    campaign, said = campaign_of(*attacks((name,)), cases=cases)
    assert not campaign.faults, said
    assert not [process for process in multiprocessing.active_children() if process not in before]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_minutes() -> None:
    """Of all attacks, from a seed of the day's own."""
    line = [sys.executable, "-m", "tests.fuzz", "--seconds", "600"]
    result = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ranks_that_do_not_get_ready_are_started_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine does before the attack begins is no fault, unless it happens twice."""
    tries = []

    def refuse(*_: object) -> None:
        tries.append(1)
        raise deaths.NotReadyError("ranks do not get ready")

    monkeypatch.setattr(deaths.Death, "_prepare", refuse)
    death = next(deaths.cases(random.Random(SEED)))
    with pytest.raises(deaths.NotReadyError):
        death.run()
    assert len(tries) == 2
