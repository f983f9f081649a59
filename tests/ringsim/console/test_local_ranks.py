"""torchrun on local ranks, with a small program in place of torchrun."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ringsim.console import local_ranks
from ringsim.console.local_ranks import run_local_ranks
from tests.processes import kill_all

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60
# Stand-ins for torchrun. They are given what torchrun would be, from the number of ranks on.
TELLING = "import sys; print(sys.argv[1:], flush=True); print('it failed', file=sys.stderr)"
WAITING = "import time; print('waiting', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITING}"
# A program that starts ranks, as a user would; what it finds at the end is whether a second signal got through.
PROGRAM = """
import sys
from ringsim.console import local_ranks
local_ranks.TORCHRUN, local_ranks.GRACE_S = (sys.executable, "-c", sys.argv[1]), float(sys.argv[2])
try:
    local_ranks.run_local_ranks(2, ["script.py"])
except KeyboardInterrupt:
    print("interrupted")
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Take this for torchrun."""
    monkeypatch.setattr(local_ranks, "TORCHRUN", (sys.executable, "-c", program))


def start(torchrun: str, grace_s: float) -> subprocess.Popen[str]:
    """The program, as soon as its torchrun waits."""
    command = [sys.executable, "-c", PROGRAM, torchrun, str(grace_s)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    return process


def finish(process: subprocess.Popen[str]) -> str:
    """Return the rest of its output. All that hold its stdout must end first, its children too."""
    with process:
        try:
            return process.communicate(timeout=TIMEOUT_S)[0]
        finally:
            if process.poll() is None:
                kill_all(process.pid)


def test_torchrun_gets_the_ranks_and_the_script(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And what it says is seen, unless it is kept quiet."""
    stand_in(monkeypatch, TELLING)
    run_local_ranks(3, ["-m", "some.module", "--size", "1 MiB"])
    run_local_ranks(2, ["script.py"], quiet=True)
    given = "['--nproc-per-node', '3', '-m', 'some.module', '--size', '1 MiB']\n"
    assert capfd.readouterr() == (given, "it failed\n")


@pytest.mark.parametrize(("quiet", "said"), [(False, "; its output is above"), (True, ":\nit failed")])
def test_a_failure_names_the_command(monkeypatch: pytest.MonkeyPatch, quiet: bool, said: str) -> None:
    """As one would type it, and its exit code; what was kept quiet is said now."""
    stand_in(monkeypatch, f"{TELLING}; sys.exit(3)")
    with pytest.raises(OSError, match="^torchrun ") as caught:
        run_local_ranks(2, ["script.py", "--name", "a b"], quiet=quiet)
    assert str(caught.value) == f"torchrun --nproc-per-node 2 script.py --name 'a b' ended with exit code 3{said}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_program_ends_torchrun(number: signal.Signals) -> None:
    """Each signal as Ctrl-C does, and nothing is left that holds the program's stdout."""
    process = start(WAITING, grace_s=TIMEOUT_S)
    process.send_signal(number)
    assert finish(process) == "interrupted\n"
    assert process.returncode == 0


def test_a_signal_while_torchrun_is_started_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody has the process in hand."""
    started = []

    class Signalled(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            started.append(self)
            os.kill(os.getpid(), signal.SIGINT)

    stand_in(monkeypatch, WAITING)
    monkeypatch.setattr(subprocess, "Popen", Signalled)
    with pytest.raises(KeyboardInterrupt):
        run_local_ranks(2, ["script.py"])
    assert [process.poll() for process in started] == [-signal.SIGTERM]


def test_a_torchrun_that_does_not_end_is_killed() -> None:
    """After its grace, even if signals keep coming."""
    process = start(STUBBORN, grace_s=1.0)
    again = threading.Timer(0.1, process.send_signal, [signal.SIGTERM])
    process.send_signal(signal.SIGINT)
    again.start()
    assert finish(process) == "interrupted\n"
    again.join()


def test_the_program_has_its_own_signals_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that it ignores, which stay ignored meanwhile."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    stand_in(monkeypatch, f"import os, signal; os.kill({os.getpid()}, signal.SIGHUP)")
    outside = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        before = [signal.getsignal(number) for number in numbers]
        run_local_ranks(1, [])
        assert [signal.getsignal(number) for number in numbers] == before
    finally:
        signal.signal(signal.SIGHUP, outside)


@pytest.mark.parametrize("program", ["import sys; sys.exit('rank says why')", "import os, signal; os.kill({}, 15)"])
def test_torchrun_itself_adds_no_traceback(program: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whether a rank fails, which has said why, or a signal ends all."""
    script = tmp_path / "script.py"
    script.write_text(program.format("os.getppid()") + "\nimport time; time.sleep(60)")
    with pytest.raises(OSError, match="ended with exit code"):
        run_local_ranks(1, [str(script)])
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "OMP_NUM_THREADS" not in said
    assert ("rank says why" in said) is ("why" in program)


def test_something_can_be_done_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every now and then until the ranks have ended, whose words are all kept."""
    monkeypatch.setattr(local_ranks, "MEANWHILE_S", 0.05)
    stand_in(monkeypatch, "import sys, time; time.sleep(0.5); sys.exit('x' * 10**6)")
    calls: list[int] = []
    with pytest.raises(OSError, match="x{1000000}$"):
        run_local_ranks(1, ["script.py"], quiet=True, meanwhile=lambda: calls.append(1))
    assert calls
