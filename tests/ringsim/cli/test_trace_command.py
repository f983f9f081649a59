"""`ringsim trace` before the recording, whose tests are in tests/collectives/recording/test_trace_command.py."""

import signal
import sys
import time
from pathlib import Path

import pytest

from ringsim.cli.commands import trace
from tests.processes import finish, left_of, start_python
from tests.ringsim.commands import invoke


@pytest.mark.parametrize(("per_host", "given", "threads"), [(8, None, "1"), (1, None, None), (8, "3", "3")])
def test_ranks_of_a_host_share_its_cores(
    per_host: int, given: str | None, threads: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As under torchrun, a rank that is not alone computes with one thread, unless the environment says otherwise."""
    told, script = tmp_path / "threads", tmp_path / "train.py"
    recording = (
        f"import os, pathlib, sys; pathlib.Path({str(told)!r}).write_text(str(os.environ.get('OMP_NUM_THREADS'))); "
        "pathlib.Path(sys.argv[2]).write_text('3')"
    )
    monkeypatch.setattr(trace, "RECORDING", (sys.executable, "-c", recording))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    script.touch()
    result = invoke("trace", "--ranks", 16, "--ranks-per-host", per_host, "-o", tmp_path / "a.json", script)
    assert (result.exit_code, told.read_text()) == (3, str(threads))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_ends_the_command_ends_the_program(number: int, tmp_path: Path) -> None:
    """Nothing goes on in the background."""
    pid_file, script = tmp_path / "pid", tmp_path / "train.py"
    script.write_text("")
    recording = (
        f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(f'{{os.getpid()}}.'); time.sleep(60)"
    )
    command = (
        "import sys; from ringsim.cli import main; from ringsim.cli.commands import trace; "
        f"trace.console.require_torch = lambda _: None; trace.RECORDING = (sys.executable, '-c', {recording!r}); "
        f"main(['trace', {str(script)!r}])"
    )
    job = start_python("-c", command, folder=tmp_path)
    while not (pid_file.exists() and pid_file.read_text().endswith(".")):
        assert job.poll() is None
        time.sleep(0.05)
    job.send_signal(number)
    assert finish(job).stderr == "ringsim: interrupted\n"
    assert left_of([int(pid_file.read_text().strip("."))]) == []


@pytest.mark.slow  # imports torch in a process of its own
def test_an_interrupted_program_says_how_far_it_has_come(tmp_path: Path) -> None:
    """In one line, also if it never steps."""
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('here', flush=True)\nwhile True:\n    time.sleep(1)\n")
    job = start_python("-m", "ringsim", "trace", "-o", str(tmp_path / "a.json"), str(script), folder=tmp_path)
    assert job.stdout.readline() == "here\n"
    job.send_signal(signal.SIGINT)
    done = finish(job)
    assert done.stderr == (
        "ringsim trace: interrupted after 0 steps of a torch.optim.Optimizer; 3 warm up; no trace is written\n"
    )
    assert (done.returncode, list(tmp_path.glob("*.json"))) == (130, [])
