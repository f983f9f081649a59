"""Ranks on this host: their environment, their failures, each said once, and that none of them is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import pytest

from ringsim.console import local_ranks, run_local_ranks, spawn
from tests.processes import kill_all, left_of

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS", "MASTER_ADDR")
PROGRAM = """
import sys
from ringsim.console import local_ranks, run_local_ranks, spawn
from tests.ringsim.console.test_local_ranks import wait_for_signals
if __name__ == "__main__":
    folder, how, local_ranks.START_METHOD = sys.argv[1:]
    if how == "program":
        run_local_ranks(2, [f"{folder}/waiting.py", folder])
    sys.exit(spawn(2, wait_for_signals, (folder,), stops=how == "stops"))
"""
WAITING = """
import sys
from tests.ringsim.console.test_local_ranks import wait_for_signals
wait_for_signals(sys.argv[1])
"""
RANK_PROGRAM = """
import sys
print(sys.argv[1:], sys.path[0], flush=True)
print("it failed", file=sys.stderr)
"""
REFUSING = """
import click
from ringsim.console import TorchrunCommand
@click.command("told", cls=TorchrunCommand)
@click.option("--size", type=int)
def main(size): raise click.UsageError(f"no {size}")
main()
"""


class OursError(RuntimeError):
    """As one of this project, which says in a line what happened."""

    __module__ = "ringsim.somewhere"


def note_variables(folder: str) -> None:
    """Write what the environment says of this rank."""
    Path(folder, os.environ["RANK"]).write_text(json.dumps([*map(os.environ.get, VARIABLES)]))


def wait_for_signals(folder: str) -> int:
    """Wait as a rank of a run does; SIGUSR1 ends it after a moment, with exit code 0 on rank 0."""
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    rank = os.environ["RANK"]
    Path(folder, f"{rank}.tmp").write_text(str(os.getpid()))
    Path(folder, f"{rank}.tmp").rename(Path(folder, f"rank{rank}"))
    while not came:
        time.sleep(0.01)
    return 0 if rank == "0" else 128 + came[0]


FAILURES = {
    "mistake": ValueError("--data 1: no such thing"),
    "ours": OursError("nobody came"),
    "bug": ZeroDivisionError("by 1"),
    "words": SystemExit("rank said why"),
    "exit": SystemExit(5),
}


def fail(how: str) -> None:
    """Rank 1 fails; rank 0 does not notice."""
    if os.environ["RANK"] == "0":
        time.sleep(600)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise FAILURES[how]


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that need load nothing anew."""
    monkeypatch.setattr(local_ranks, "START_METHOD", "fork")


@pytest.fixture(autouse=True)
def _not_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_STEP_NUM_TASKS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def test_ranks_have_the_variables_of_torchrun(tmp_path: Path) -> None:
    """And nothing of it stays in our environment."""
    before = dict(os.environ)
    assert spawn(2, note_variables, (str(tmp_path),)) == 0
    assert dict(os.environ) == before
    for rank in "01":
        assert json.loads((tmp_path / rank).read_text()) == [rank, rank, "2", "2", "0", "1", "127.0.0.1"]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("ours", 1, "rank 1: nobody came\n"),
        ("exit", 5, ""),  # the rank itself has said why
        ("killed", 1, "rank 1 was ended by SIGKILL; the system may have run out of memory\n"),
        ("bug", 1, r"rank 1: Traceback \(most recent call last\):\n(.*\n)*ZeroDivisionError: by 1\n"),
        ("words", 1, "rank said why\n"),
    ],
)
def test_a_rank_that_fails_ends_the_others(how: str, code: int, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Its error is said, once."""
    assert spawn(2, fail, (how,)) == code
    assert re.fullmatch(said, capfd.readouterr().err)


@pytest.mark.parametrize(
    ("codes", "told", "failure"),
    [
        ({1: 3}, {}, (3, "")),  # it left by os._exit
        ({1: 3}, {0: (4, 7.0), 1: (3, 8.0)}, (4, "rank 0")),  # rank 1 failed because rank 0 had gone
        ({0: 1, 2: -11}, {0: (1, 7.0)}, (1, "rank 2 was ended by SIGSEGV")),
        ({0: 143, 1: -15}, {0: (143, 7.0)}, (143, "")),  # passed on, to a rank that was not ready for it
    ],
)
def test_the_first_cause_is_what_counts(
    codes: dict[int, int], told: dict[int, tuple[int, float]], failure: tuple[int, str], tmp_path: Path
) -> None:
    """A rank that a signal ended could not say why; else the rank that was the first to tell. Half a file is none."""
    (tmp_path / "5").touch()
    for rank, (code, when) in told.items():
        content = {"message": f"rank {rank}", "timestamp": when, "exit_code": code}
        (tmp_path / str(rank)).write_text(json.dumps(content))
    assert local_ranks._failure(codes, [signal.SIGTERM], str(tmp_path)) == failure


@contextmanager
def start(folder: Path, how: str, method: str = "spawn") -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """Two ranks that wait, with a parent of their own, in a session of its own as in a terminal; ended in any case."""
    (folder / "program.py").write_text(PROGRAM)
    (folder / "waiting.py").write_text(WAITING)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    command = [sys.executable, str(folder / "program.py"), str(folder), how, method]
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while len(ranks := [int(path.read_text()) for path in folder.glob("rank?")]) < 2:
                assert time.monotonic() < deadline
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.02)
            yield process, ranks
        finally:
            kill_all(process.pid)


@pytest.mark.parametrize(
    ("how", "number", "method", "code"),
    [
        ("function", signal.SIGINT, "spawn", 130),
        ("stops", signal.SIGUSR1, "fork", 138),  # rank 0 ends well, rank 1 with the signal's code
        ("stops", signal.SIGTERM, "spawn", 143),
        ("program", signal.SIGHUP, "fork", -signal.SIGINT),
    ],
)
def test_a_signal_ends_all_ranks(how: str, number: signal.Signals, method: str, code: int, tmp_path: Path) -> None:
    """Without a traceback of a rank; a terminal sends Ctrl-C to the ranks too."""
    with start(tmp_path, how, method) as (process, ranks):
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, errors = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out, errors.count("Traceback")) == (code, "", int(how == "program")), errors
        assert left_of(ranks) == []


def test_when_the_parent_is_killed_the_ranks_end(tmp_path: Path) -> None:
    """Nobody else would end them."""
    with start(tmp_path, "function", "fork") as (process, ranks):
        process.kill()
        assert left_of(ranks) == []


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.1, 0.6, 1.5])
def test_a_signal_at_any_moment_leaves_nothing(after_s: float, tmp_path: Path) -> None:
    """While Python loads, and the ranks start."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), "function", "spawn"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, env=environment) as process:
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode in (128 + signal.SIGINT, -signal.SIGINT, 1)  # the latter before `spawn` had begun
    deadline = time.monotonic() + TIMEOUT_S
    with suppress(ProcessLookupError):  # Python's own resource tracker ends when it sees that all others have
        while os.killpg(process.pid, 0) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("num_ranks", "environment", "message"),
    [
        (0, {}, "0 ranks: there must be at least 1"),
        (4, {"RANK": "0"}, "4 ranks were requested, but torchrun has already started ranks: use only one of the two"),
        (4, {"SLURM_STEP_NUM_TASKS": "2"}, "4 ranks were requested, but srun has already started ranks: use only .*"),
    ],
)
def test_what_cannot_be_spawned_is_refused(
    num_ranks: int, environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, before anything is started."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{message}$"):
        spawn(num_ranks, fail, ("bug",))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("ending", "code"), [("sys.exit(3)", 3), ("1 / 0", 1)])
def test_a_program_that_fails(ending: str, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It has its arguments, and its own folder on the path, as if Python had been started with it."""
    script = tmp_path / "script.py"
    script.write_text(f"{RANK_PROGRAM}{ending}")
    with pytest.raises(click.exceptions.Exit) as caught:
        run_local_ranks(1, [str(script), "--size", "1 MiB"])
    assert caught.value.exit_code == code
    out, errors = capfd.readouterr()
    assert out == f"['--size', '1 MiB'] {tmp_path}\n"
    assert errors.startswith("it failed\n")
    assert ("ZeroDivisionError" in errors) is (code == 1)


def test_a_quiet_program_is_named_when_it_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With its exit code, and what it has said."""
    script = tmp_path / "script.py"
    script.write_text(f"{RANK_PROGRAM}sys.exit(3)")
    with pytest.raises(OSError, match="script.py 'a b' on 1 ranks ended with exit code 3:\nit failed$"):
        run_local_ranks(1, [str(script), "a b"], quiet=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("forked")
def test_what_is_the_users_mistake_is_raised(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """For the command line to say; the rank, or the program whose options were wrong, says nothing."""
    (tmp_path / "script.py").write_text(REFUSING)
    with pytest.raises(ValueError, match=r"^--data 1: no such thing$"):
        spawn(2, fail, ("mistake",))
    for quiet in (False, True):
        with pytest.raises(ValueError, match=r"^no 7$"):
            run_local_ranks(2, [str(tmp_path / "script.py"), "--size", "7"], quiet=quiet)
    assert capfd.readouterr() == ("", "")
