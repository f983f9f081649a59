"""`ringsim step --ranks`: which programs it records again, and what it makes of them.

The recorder is one that runs nothing; tests/collectives/recording/test_trace_command.py has the real one.
"""

import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from ringsim.cli.commands import trace
from ringsim.traces import TraceRequest
from tests.processes import ROOT
from tests.ringsim.commands import as_json, invoke, refused, run, written
from tests.ringsim.traces.made_trace import recorded

RECORDER = f"""
import json, os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from ringsim.files import decode
from ringsim.traces import TraceRequest
from tests.ringsim.traces.made_trace import recorded

request = decode(TraceRequest, json.loads(sys.argv[1]))
with open("requests.txt", "a") as file:  # in the folder of the program
    print(request.num_ranks, request.ranks_per_host, os.environ.get("OMP_NUM_THREADS"), file=file)
print("printed by the program")
print("a warning of the program", file=sys.stderr)
report = Path(sys.argv[2])
if "fail" in request.arguments and request.num_ranks == 8:
    report.write_text("1")
    sys.exit("ringsim trace: train.py:3: ValueError: 8 is too many")
recorded(request).save(Path(request.output))
report.write_text("0")
"""
PROGRAM = ("--run-recorded",)
HOSTS_OF_2 = '[host]\nranks = 2\nlink.bandwidth = "1GB/s"\nnic = { bandwidth = "1GB/s", latency = "5us" }\n'


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TraceRequest:
    """Of a script that is there, which a recorder without torch pretends to run."""
    monkeypatch.setattr(trace, "RECORDING", (sys.executable, "-c", RECORDER))
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "train.py").touch()
    written(tmp_path / "two.toml", HOSTS_OF_2)
    return TraceRequest("train.py", (), False, 4, 0, 8, 2, "old.json", folder=str(tmp_path / "program"))


@pytest.fixture
def file(tmp_path: Path, request_: TraceRequest) -> Path:
    """The trace of 4 ranks that came of it, on hosts of 2."""
    path = tmp_path / "step.trace.json"
    replace(recorded(request_), ranks_per_host=2).save(path)
    return path


def recordings(file: Path) -> list[str]:
    """Ranks, ranks per host and OMP_NUM_THREADS of each recording."""
    noted = file.parent / "program" / "requests.txt"
    return noted.read_text().splitlines() if noted.exists() else []


def again(file: Path, num_ranks: int, per_host: int) -> str:
    """The line that names the folder and the command of a recording before it runs."""
    command = f"ringsim trace --ranks {num_ranks} --ranks-per-host {per_host} --rank 0 --steps 2 train.py"
    return f"recording again in {file.parent / 'program'}: {command}"


@pytest.mark.slow
def test_each_number_is_recorded_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On hosts of the network; the file serves for its own number; each command is named, and a warning said once."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    options = ("--ranks", "2:16", *PROGRAM, "--tokens", 100, "--json")
    result = run("step", file, "--network", file.parent / "two.toml", *options)
    assert recordings(file) == ["2 2 1", "8 2 1", "16 2 1"]
    first, *others = (again(file, num_ranks, 2) for num_ranks in (2, 8, 16))
    assert result.stderr.splitlines() == [first, "a warning of the program", *others]
    steps = json.loads(result.stdout)["scaling"]
    assert [step["num_ranks"] for step in steps] == [2, 4, 8, 16]
    for step in steps:
        assert step["step_s"] == pytest.approx(step["compute_s"] + step["exposed_s"])
        assert step["efficiency"] == steps[0]["step_s"] / step["step_s"]
        assert step["total_tokens_per_s"] == pytest.approx(100 * step["num_ranks"] / step["step_s"])


def test_the_table_and_the_curve(file: Path, request_: TraceRequest) -> None:
    """A line for each number of ranks; the picture is the curve, and a page has it and the step on the most ranks.

    A file of other hosts is recorded again, as its groups may be those of hosts. It may be of too many ranks.
    """
    for name, ranks in (("scaling.png", "4,16"), ("scaling.html", "4")):
        path = file.parent / name
        result = run("step", file, "--network", "dgx-h100-cluster", "--ranks", ranks, *PROGRAM, "-o", path)
        assert f"wrote {path}" in result.stderr
        lines = result.stdout.splitlines()
        assert lines[0].split() == ["ranks", "step", "computing", "exposed", "communication", "efficiency"]
        assert (lines[1].split()[0], lines[1].split()[-1]) == ("4", "100.0%")
        recorded(replace(request_, num_ranks=64)).save(file)
    assert recordings(file) == ["4 8 1", "16 8 1", "4 8 1"]


def test_a_program_runs_only_if_it_is_asked_for(file: Path) -> None:
    """No program runs for what is in the file; for other ranks a line says which one would run, and where."""
    run("step", file, "--network", "gbe")
    would_run = f"in {file.parent / 'program'}: ringsim trace --ranks 4 --ranks-per-host 8 --rank 0 --steps 2 train.py"
    said = refused("step", file, "--network", "gbe", "--ranks", "4,8")
    assert f"{file}: --ranks would run what the file names, {would_run}; give --run-recorded to run it, or " in said
    assert recordings(file) == []


def test_another_program_runs_if_given(file: Path, request_: TraceRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the present folder, with its own arguments; nothing is left of the program that the file names."""
    recorded(replace(request_, program="-c", arguments=("fail",), is_module=True)).save(file)
    (file.parent / "mine.py").write_text("")
    monkeypatch.chdir(file.parent)
    command = "step", file, "--network", "gbe", "--ranks", "8", "--"
    result = run(*command, "mine.py", "--lr", "1", "-o", "x.json")
    assert "--steps 2 mine.py --lr 1 -o x.json\n" in result.stderr
    assert f"recording again in {file.parent}: " in result.stderr
    assert "--steps 2 -m mine a\n" in run(*command, "-m", "mine", "a").stderr
    assert (recordings(file), len((file.parent / "requests.txt").read_text().splitlines())) == ([], 2)
    assert "other.py, which does not exist; -m is for the name of a module" in refused(*command, "other.py")
    assert "either a PROGRAM or --run-recorded" in refused(*command[:-1], *PROGRAM, "--", "mine.py")
    assert "neither of them without it" in refused("step", file, "mine.py")


def test_a_scale_is_found_by_the_file_and_carried_over(file: Path) -> None:
    """One predicts many GPUs from the few that there are."""
    options = "step", file, "--network", file.parent / "two.toml", "--measured-step", "31ms"
    scale = as_json(*options)["compute_scale"]
    result = as_json(*options, "--ranks", "8", *PROGRAM)
    assert (scale, result["compute_scale"]) == (pytest.approx(3, rel=0.1), scale)
    assert [step["compute_s"] for step in result["scaling"]] == [pytest.approx(0.01 * scale)]


@pytest.mark.slow
def test_a_recording_that_fails_is_told(file: Path, request_: TraceRequest) -> None:
    """With the line of the recorder, below the command that it came from."""
    recorded(replace(request_, arguments=("fail",))).save(file)
    result = invoke("step", file, "--network", "gbe", "--ranks", "2:8", *PROGRAM)
    told = f"{again(file, 8, 1)} fail\nringsim trace: train.py:3: ValueError: 8 is too many\n"
    assert (result.exit_code, result.stdout, result.stderr[-len(told) :]) == (1, "", told)


def test_what_cannot_be_recorded_again_is_refused(file: Path, request_: TraceRequest) -> None:
    """One line with the file, and what to do."""
    command = "step", file, "--network", "gbe", *PROGRAM, "--ranks", "4,8"
    for options, message in (
        ("--network dgx-h100 --ranks 2:16", "dgx-h100.toml: its hosts have 8 ranks: 16 were asked for"),
        ("--ranks 8:2", "'8:2' is not a range"),
        ("--ranks 2:4 -o a.json", "--output a.json: a file for ui.perfetto.dev holds one step"),
        ("--ranks 2:4 -o a.html --style dark", "--style has no effect on a page"),
    ):
        assert message in refused("step", file, *options.split())
    recorded(replace(request_, rank=3)).save(file)
    assert f"{file}: rank 3: must be less than the 2 ranks" in refused(*command[:-1], "2:8")
    replace(recorded(request_), request=None).save(file)
    assert f"{file}: does not contain how it was recorded: record it again with ringsim trace" in refused(*command)
    recorded(replace(request_, folder="/nowhere", is_module=True)).save(file)
    assert f"{file}: to be recorded of /nowhere, which does not exist" in refused(*command)
    recorded(request_).save(file)
    assert 'arguments[0] = "a\\nb": must be text of one line' in refused(
        *command[:4], *command[-2:], "--", "train.py", "a\nb"
    )
    program = file.parent / "program" / "train.py"
    program.unlink()
    assert f"{file}: to be recorded of {program}, which does not exist" in refused(*command)
    assert recordings(file) == []
