"""Nothing that is only read executes: whatever a file names, a command that reads it starts no code but our own."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from ringsim.cli import main as ringsim
from ringsim.console import OneLineGroup
from ringsim.measurements import Measurements
from ringsim.traces import TracedStep, TraceRequest
from tests.ringsim.calibration.test_comparison import TIMES
from tests.ringsim.made_run import made_run
from tests.ringsim.traces.made_trace import call, call_of, recorded, traced
from trainers.cli.group import main as trainers

OWNED = "open('OWNED', 'w').close()"
PROGRAM = "#!/bin/sh\n> {folder}/OWNED\n"
EVIL, ON = "evil.py:make", "--network gbe"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The present folder, as somebody else has filled it; its modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "evil.py").write_text(f"{OWNED}\nfrom ringsim import ring_all_reduce as make\n")
    (tmp_path / "latex").write_text(PROGRAM.format(folder=tmp_path))
    (tmp_path / "latex").chmod(0o755)
    (tmp_path / "tex.mplstyle").write_text("text.usetex: True\n")
    (tmp_path / "run.toml").write_text('task = "evil:make"\nseed = 0\n')
    traced(TracedStep((call(0),), (call_of("all_gather", 8, 1, EVIL),))).save("algorithm.json")
    times, run = replace(TIMES, algorithm=EVIL), replace(made_run(), algorithm=EVIL)
    Measurements(3, {}, (), (times,), (run,)).save("measured.json")
    request = TraceRequest("timeit", ("-n1", "-s", OWNED), True, 4, 0, 8, 1, "evil.py", folder=str(tmp_path))
    recorded(request).save("program.json")
    recorded(replace(request, program="evil.py", is_module=False)).save("file.json")


@pytest.mark.parametrize(
    ("program", "command", "said", "exit_code"),
    [
        (ringsim, f"step program.json {ON}", "a step of 4 ranks", 0),
        (ringsim, f"step program.json {ON} --ranks 4,8", "program.json: --ranks would run what the file names, in", 2),
        (ringsim, f"step file.json {ON} --ranks 8", "give --run-recorded to run it, or your own program behind", 2),
        (ringsim, f"step algorithm.json {ON}", f"give --trust {EVIL}", 2),
        (ringsim, f"step algorithm.json {ON} --measured-step 1s", "the trace names a Python file", 2),
        (ringsim, f"step algorithm.json {ON} --algorithm ring", f"give --trust {EVIL}", 2),
        (ringsim, f"animate --measured measured.json {ON}", f"give --trust {EVIL}", 2),
        (ringsim, f"compare measured.json {ON} -o report", "no picture of a run: all_reduce ", 0),
        (ringsim, "report . -o report.html", "", 0),
        (ringsim, "plot --ranks 2 -o a.png --style tex.mplstyle", "", 0),
        (ringsim, "plot --ranks 2 -o a.png --style evil.style", "'evil.style' is not a style", 2),
        (trainers, "evaluate .", "there is no checkpoint in this directory", 2),
        (trainers, "evaluate checkpoint-3.pt", "run.toml: task 'evil:make': is Python code, which runs only if", 2),
        (trainers, "train --config run.toml", "give --task evil:make", 2),
    ],
)
def test_a_file_of_somebody_else_starts_nothing(program: OneLineGroup, command: str, said: str, exit_code: int) -> None:
    """What needs code that only the file names ends in a line that says what to give; the rest is done without it."""
    done = CliRunner().invoke(program, command.split())
    assert (done.exit_code, said in done.output) == (exit_code, True), done.output
    assert not Path("OWNED").exists()


def test_what_the_user_names_runs() -> None:
    """The same code, asked for on the command line: so the tests above could have failed."""
    done = CliRunner().invoke(ringsim, f"compare measured.json {ON} -o report --trust {EVIL}".split())
    assert (done.exit_code, Path("OWNED").exists()) == (0, True)
    assert [*Path("report").glob("run-all_reduce*")]
