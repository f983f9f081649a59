"""`ringsim sweep` in several processes, and interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringsim import Sweep, load_network
from ringsim.network import network_text
from tests.processes import below, kill_all, left_of
from tests.ringsim.commands import refused, run, written

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

def even(n):
    if n % 2:
        raise ValueError("odd")
    return ring_all_reduce(n)
"""


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
    return written(tmp_path / "own.py", OWN).parent


@pytest.mark.timeout(LIMIT_S)
def test_two_processes_give_the_file_and_table_of_one(folder: Path) -> None:
    """To the bit, in the same order; with two networks, algorithms for some numbers of ranks, and a limit."""
    arguments = ["--algorithm", "gloo_ring,own.py:even,direct", "--ranks", "3,4,32", "--sizes", "1KiB:1GiB"]
    arguments += ["--network", "dgx-h100", "--network", "gbe", "--max-transfers", "4000"]
    one, two = (run("sweep", *arguments, "--jobs", jobs, "--csv", f"{jobs}.csv") for jobs in (1, 2))
    assert two.stdout == one.stdout
    assert cells_of(folder / "1.csv") == cells_of(folder / "2.csv")


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("ending", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
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
def test_what_ends_a_sweep_in_several_processes_is_one_line(folder: Path) -> None:
    """With exit code 2; nothing is said of the cells that others were at."""
    own = folder / "own.py"  # workers may have been started in another folder
    options = ["--ranks", "2,4,8", "--sizes", "1KiB", "--jobs", "2", "--algorithm"]
    assert refused("sweep", *options, f"{own}:dies") == f"ringsim: a worker process ended: SIGKILL(-9); {ADVICE}\n"
    told = f"ringsim: algorithm '{own}:refuses': line 19: it raised ValueError: not today\n"
    assert refused("sweep", *options, f"{own}:refuses") == told


def test_what_a_library_takes_may_never_finish(tmp_path: Path) -> None:
    """It is left out with the reason, as any algorithm is, and the file of the sweep can be read again."""
    failing = network_text(load_network("dgx-h100-cluster")) + '[[failure]]\nlink = "host1.nic0.out"\nat = "0s"\n'
    network, path = written(tmp_path / "failing.toml", failing), tmp_path / "cells.csv"
    run("sweep", "--algorithm", "nccl", "--ranks", 16, "--sizes", "1KiB", "--network", network, "--csv", path)
    [cell] = Sweep.from_csv(path).cells
    assert (cell.time_s, cell.taken.split()[0]) == (None, "nccl_tree")
    assert cell.skipped == f"never finishes on {network} with 1,024 bytes, as something fails"
