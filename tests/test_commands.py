"""Rules for every command of all three packages, whoever adds one."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from collectives.benchmark.command import main as benchmark
from ringsim.cli import main as ringsim
from trainers.cli.compare import main as compare
from trainers.cli.group import main as trainers

WIDTH = 80


def all_commands() -> dict[str, click.Command]:
    """By what is typed before their options."""
    groups = {"ringsim": ringsim, "trainers": trainers}
    commands: dict[str, click.Command] = {"collectives.benchmark": benchmark, "train_ring.py": compare, **groups}
    for program, group in groups.items():
        commands |= {f"{program} {name}": command for name, command in group.commands.items()}
    return commands


ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("cores", "asked", "started"), [(1, "", 2), (3, "", 3), (64, "", 4), (1, "4", 4)])
def test_the_demo_starts_a_rank_a_core(tmp_path: Path, cores: int, asked: str, started: int) -> None:
    """At least two and at most four, unless another number is asked for; and says so first."""
    (tmp_path / "bin").mkdir()
    for program, told in (("python", str(cores)), ("torchrun", '"$@"')):
        (tmp_path / "bin" / program).write_text(f"#!/bin/sh\necho {told}\n")
        (tmp_path / "bin" / program).chmod(0o700)
    (tmp_path / "installed").touch()
    command, environment = ["make", "demo", f"VENV={tmp_path}"], os.environ | {"RANKS": asked}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    first, second = (line for line in done.stdout.splitlines() if not line.startswith("make["))  # under another make
    assert first == f"make demo: {started} ranks; cores: {cores}; RANKS=4 make demo starts 4 ranks"
    assert second.startswith(f"--standalone --nproc-per-node {started} ")


COMMANDS = all_commands()
EVERY = pytest.mark.parametrize(("name", "command"), COMMANDS.items(), ids=COMMANDS)


def examples_of(command: click.Command) -> list[str]:
    """Return the examples at the end of a command's help, which `ringsim.console.examples` has put there."""
    _, heading, after = (command.epilog or "").partition("Example")
    lines = after.partition("\n\n")[0].splitlines()[1:] if heading else []
    return [line.strip() for line in lines]


def options_of(command: click.Command) -> list[click.Option]:
    """All but --help, which is click's."""
    return [option for option in command.params if isinstance(option, click.Option)]


def shown_help(name: str, command: click.Command, flag: str = "--help") -> str:
    """Return the help as printed for a terminal of 80 columns."""
    program, *rest = name.split()
    top = COMMANDS.get(program, command)
    done = CliRunner().invoke(top, [*rest, flag], prog_name=program, terminal_width=WIDTH)
    assert done.exit_code == 0, done.output
    return done.stdout


@EVERY
def test_help_fits_a_terminal_and_is_not_cut(name: str, command: click.Command) -> None:
    """Short and long, and both the same."""
    text = shown_help(name, command)
    assert shown_help(name, command, "-h") == text
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    summaries = text.partition("Commands:")[2]
    assert "..." not in summaries


def test_nan_is_no_number() -> None:
    """The types of click itself take it, and find it in every range; ours do not."""
    options = [option for command in COMMANDS.values() for option in options_of(command)]
    numbers = [option for option in options if isinstance(option.type, click.types.FloatParamType)]
    assert len(numbers) > 5
    for option in numbers:
        with pytest.raises(click.BadParameter, match="'nan' is not a number"):
            option.type.convert("nan", option, None)


@EVERY
def test_every_help_has_an_example_that_can_be_typed(
    name: str, command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its options exist, and take the values that it gives."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "order.json").write_text("[1, 0]")
    (tmp_path / "run").mkdir()
    shown = examples_of(command)
    assert shown, f"give epilog=examples(...) to {name}"
    for line in shown:
        assert line in shown_help(name, command)
        parse(shlex.split(line))


def parse(words: list[str]) -> None:
    """As the command would that these words start."""
    for module in ("collectives.benchmark", "scripts/train_ring.py", "trainers"):
        if words[0] == "torchrun" and module in words:
            words = [module.replace("scripts/", ""), *words[words.index(module) + 1 :]]
    if words[0] == "trainers" and words[1].startswith("-"):
        words.insert(1, "train")
    named = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    arguments = words[len(named.split()) :]
    COMMANDS[named].make_context(named, arguments)


@pytest.mark.parametrize("program", ["ringsim", "trainers"])
def test_a_bare_program_prints_its_help(program: str) -> None:
    """On stdout, which says what becomes of files and how completion is switched on."""
    done = CliRunner().invoke(COMMANDS[program], [], prog_name=program, terminal_width=WIDTH)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == shown_help(program, COMMANDS[program])
    said = " ".join(done.stdout.split())
    assert "A file that exists is replaced by a new one when that is complete" in said
    assert f"_{program.upper()}_COMPLETE=bash_source {program}" in said


TIMES = """
from ringsim import Network
from ringsim.registry import ALGORITHMS, build
from ringsim.simulation import simulate
network = Network.uniform(1e-5, 1.3e9, reduce_bytes_per_s=4.1e9, gap_s=1.1e-6, receive_overhead_s=2.3e-6)
print([simulate(build(*key, 4), network, 1_000_003).columns() for key in ALGORITHMS])
"""


def test_times_do_not_depend_on_the_order_of_sets() -> None:
    """Which is another one in each process."""
    command, variables = [sys.executable, "-c", TIMES], [os.environ | {"PYTHONHASHSEED": seed} for seed in "12"]
    told = [subprocess.run(command, cwd=ROOT, env=each, capture_output=True, check=True).stdout for each in variables]
    assert told[0] == told[1]


@pytest.mark.parametrize("program", ["ringsim", "trainers"])
def test_ctrl_c_is_one_line(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And exit code 130."""
    name = {"ringsim": "networks", "trainers": "compare"}[program]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS[f"{program} {name}"], "callback", interrupted)
    done = CliRunner().invoke(COMMANDS[program], [name])
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", f"{program}: interrupted\n")


def test_make_demo_starts_what_can_be_started() -> None:
    """The first command of the README: its options exist, and it leaves what the README says."""
    command = ["make", "--no-print-directory", "-n", "demo", "VENV=/nowhere"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of `make test`
    done = subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    *_, last = done.stdout.splitlines()
    words = shlex.split(last.replace("/nowhere/bin/", ""))
    assert words[0] == "torchrun"
    parse(words)
    assert words[-2:] == ["--output", "report"]
