"""`ringsim sweep` in several processes, and interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringsim import load_network
from ringsim.analysis import Sweep
from ringsim.network import network_text
from tests.processes import below, kill_all, left_of
from tests.ringsim.commands import refused, run

LIMIT_S = 240  # a hang is a failure
ADVICE = "if it was killed because memory ran out, use fewer --jobs or fewer ranks"
OWN = """
import os, signal, time
from pathlib import Path

from ringsim import ring_all_reduce

def blocks(n):
    if n == 2:
        Path("reached").touch()
        time.sleep(600)
    return ring_all_reduce(n)

def dies(n):
    if n == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return ring_all_reduce(n)

def refuses(n):
    raise ValueError("not today")
"""


def sweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    command = [sys.executable, "-m", "ringsim", "sweep", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def arguments_of(function: str, *more: str) -> list[str]:
    """Of the ring and the user's own algorithm, 12 cells."""
    return ["--algorithm", f"ring,own.py:{function}", "--ranks", "2,4,8", "--sizes", "1KiB,1MiB", *more]


def cells_of(path: Path) -> str:
    """A sweep's file but for its first line, which has the date and the command."""
    return path.read_text().partition("\n")[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a user's own algorithms."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


@pytest.mark.timeout(LIMIT_S)
def test_two_processes_give_the_file_and_table_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, in the same order; with two networks, algorithms for some numbers of ranks, and a limit."""
    (tmp_path / "even.py").write_text(
        "from ringsim import ring_all_reduce\n\n\ndef even(n):\n    if n % 2:\n        raise ValueError('odd')\n"
        "    return ring_all_reduce(n)\n"
    )
    arguments = ["--algorithm", "gloo_ring,even.py:even,direct", "--ranks", "3,4,64", "--sizes", "1KiB:1GiB"]
    arguments += ["--network", "dgx-h100", "--network", "gbe", "--max-transfers", "4000"]
    monkeypatch.chdir(tmp_path)
    one = run("sweep", *arguments, "--csv", "1.csv")
    two = sweep(tmp_path, *arguments, "--jobs", "2", "--csv", "2.csv")
    assert (two.returncode, two.stdout) == (0, one.stdout)
    assert cells_of(tmp_path / "1.csv") == cells_of(tmp_path / "2.csv")


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_leaves_nothing(folder: Path, ending: signal.Signals) -> None:
    """Ctrl-C reaches all processes of a terminal: one line, 130, no file and no process left."""
    command = [sys.executable, "-m", "ringsim", "sweep", *arguments_of("blocks", "--jobs", "2", "--csv", "cells.csv")]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        try:
            while not (folder / "reached").exists() and job.poll() is None:
                time.sleep(0.05)
            processes = below(job.pid)
            os.killpg(job.pid, ending) if ending == signal.SIGINT else job.send_signal(ending)
            out, err = job.communicate(timeout=LIMIT_S)
        except BaseException:
            kill_all(job.pid)
            raise
    assert (job.returncode, out, err) == (130, "", "ringsim: interrupted\n")
    assert left_of(processes) == []
    assert len(processes) >= 2
    assert not (folder / "cells.csv").exists()


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("dies", f"a worker process ended: SIGKILL(-9); {ADVICE}"),
        ("refuses", "algorithm 'own.py:refuses': line 19: it raised ValueError: not today"),
    ],
)
def test_what_ends_a_sweep_in_several_processes_is_one_line(folder: Path, function: str, message: str) -> None:
    """With exit code 2; nothing is said of the cells that others were at."""
    done = sweep(folder, *arguments_of(function, "--jobs", "2", "--csv", "cells.csv"))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"ringsim: {message}\n")


def test_what_a_library_takes_may_never_finish(tmp_path: Path) -> None:
    """It is left out with the reason, as any algorithm is, and the file of the sweep can be read again."""
    network, path = tmp_path / "failing.toml", tmp_path / "cells.csv"
    failure = '[[failure]]\nlink = "host1.nic0.out"\nat = "0s"\n'
    network.write_text(network_text(load_network("dgx-h100-cluster")) + failure)
    options = ["--algorithm", "nccl", "--ranks", "16", "--sizes", "1KiB", "--network", str(network)]
    run("sweep", *options, "--csv", path)
    [cell] = Sweep.from_csv(path).cells
    assert (cell.time_s, cell.taken.split()[0]) == (None, "nccl_tree")
    assert cell.skipped == f"never finishes on {network} with 1,024 bytes, as something fails"


def test_a_sweep_of_which_nothing_can_be_run_is_refused() -> None:
    """In one line, which names no network that nobody gave; with another algorithm beside it, it is skipped alone."""
    line = refused("sweep", "--algorithm", "nccl", "--ranks", "2,4", "--sizes", "1KiB")
    assert line.endswith(
        "no cell of the sweep can be simulated: the default network (--latency, --bandwidth): NCCL's choice is "
        "not known: it does not describe NCCL: give --network with a file that does\n"
    )
    both = run("sweep", "--algorithm", "ring,nccl", "--ranks", "2", "--sizes", "1KiB")
    assert "nccl on 2 ranks skipped: the default network" in both.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "2", "--dask", "tcp://a:1"], "--jobs and --dask exclude each other"),
        (["--jobs", "0"], "Invalid value for '--jobs': 0 is not in the range 1<=x<=1024."),
    ],
)
def test_options_that_cannot_be_are_refused(arguments: list[str], message: str) -> None:
    """In one line, before anything is simulated."""
    assert refused("sweep", *arguments) == f"ringsim sweep: {message}\n"
