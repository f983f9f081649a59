"""`ringsim sweep` in several processes, interrupted, and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringsim import Collective, load_network
from ringsim.analysis import Sweep
from ringsim.analysis.sweep_run import SweepPlan
from ringsim.files import encode
from ringsim.network import network_text
from tests.processes import below, kill_all, left_of
from tests.ringsim.commands import invoke, refused, run

LIMIT_S = 240  # a hang is a failure
OWN = """
import os, signal, time
from pathlib import Path

from ringsim import ring_all_reduce

def blocks(n):
    if n == 2 and not Path("go").exists():
        time.sleep(2)  # of two processes the other one has simulated a cell of the ring by then
        Path("reached").touch()
        time.sleep(600)
    return ring_all_reduce(n)

def dies(n):
    if n == 2 and not Path("go").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return ring_all_reduce(n)
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
    assert Sweep.from_csv(tmp_path / "2.csv").planned is None


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(("jobs", "ending"), [("1", signal.SIGINT), ("2", signal.SIGINT), ("2", signal.SIGTERM)])
def test_an_interrupted_sweep_keeps_its_cells_and_goes_on(folder: Path, jobs: str, ending: signal.Signals) -> None:
    """Ctrl-C reaches all processes of a terminal: one line, 130, no process left; and what follows is as without it."""
    command = [sys.executable, "-m", "ringsim", "sweep", *arguments_of("blocks", "--jobs", jobs, "--csv", "cells.csv")]
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
    kept = Sweep.from_csv(folder / "cells.csv")
    assert (job.returncode, out) == (130, "")
    assert err == (
        f"ringsim: interrupted; {len(kept.cells)} of 12 cells are in cells.csv; resume with: "
        "ringsim sweep --from cells.csv --trust own.py:blocks\n"
    )
    assert left_of(processes) == []
    assert len(processes) >= int(jobs) * (jobs > "1")
    assert_goes_on(folder, "blocks", kept)


@pytest.mark.timeout(LIMIT_S)
def test_a_worker_that_dies_leaves_the_cells_of_others(folder: Path) -> None:
    """One line, exit code 2, and the sweep goes on from there."""
    done = sweep(folder, *arguments_of("dies", "--jobs", "2", "--csv", "cells.csv"))
    kept = Sweep.from_csv(folder / "cells.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "ringsim: a worker process ended: SIGKILL(-9); if it was killed because memory ran out, use fewer --jobs or "
        f"fewer ranks; {len(kept.cells)} of 12 cells are in cells.csv; resume with: ringsim sweep --from cells.csv "
        "--trust own.py:dies\n"
    )
    assert_goes_on(folder, "dies", kept)


def assert_goes_on(folder: Path, function: str, kept: Sweep) -> None:
    """Require that the kept cells are part of the whole sweep, and the rest is added; untrusted code is not run."""
    assert 0 < len(kept.cells) < 12
    untrusted = refused("sweep", "--from", "cells.csv")
    assert f"cells.csv: algorithm 'own.py:{function}': the sweep names a Python file" in untrusted
    (folder / "go").touch()
    rest = sweep(folder, "--from", "cells.csv", "--trust", f"own.py:{function}", "--jobs", "2")
    whole = run("sweep", *arguments_of(function, "--csv", "whole.csv"))
    assert (rest.returncode, rest.stdout, rest.stderr) == (0, whole.stdout, "wrote cells.csv\n")
    assert cells_of(folder / "cells.csv") == cells_of(folder / "whole.csv")
    assert set(kept.cells) <= set(Sweep.from_csv(folder / "whole.csv").cells)


def change_header(path: Path, num_missing: int = 0, **changes: object) -> None:
    """Writes other values into the first line of a sweep's file, and leaves out its last cells."""
    first, *lines = path.read_text().splitlines()
    header = json.loads(first.removeprefix("# ")) | changes
    path.write_text("\n".join([f"# {json.dumps(header)}", *lines[: len(lines) - num_missing], ""]))


def small_sweep(path: Path, network: object) -> None:
    """Writes the file of two cells on this network."""
    run("sweep", "--algorithm", "ring", "--ranks", "2,4", "--sizes", "8", "--network", network, "--csv", path)


def unfinished(folder: Path, change: dict[str, object] | None = None) -> Path:
    """The file of a sweep on a network of a file, of which the last cell is missing."""
    network, path = folder / "net.toml", folder / "cells.csv"
    network.write_text('[host]\nranks = 1\n[host.nic]\nbandwidth = "1GB/s"\n')
    small_sweep(path, network)
    planned = {"algorithms": ["ring"], "ranks": [2, 4], "sizes_bytes": [8], "max_transfers": None, "file_hashes": {}}
    change_header(path, num_missing=1, planned=planned | (change or {}))
    return path


def test_what_is_missing_is_simulated_and_added(tmp_path: Path) -> None:
    """To the file itself, or to another one; a finished sweep is only shown, and keeps its file."""
    path = unfinished(tmp_path)
    before = path.read_text()
    run("sweep", "--from", path, "--csv", tmp_path / "other.csv")
    assert path.read_text() == before
    done = run("sweep", "--from", path)
    assert done.stderr == f"wrote {path}\n"
    assert cells_of(path) == cells_of(tmp_path / "other.csv")
    finished = path.read_text()
    again = run("sweep", "--from", path)
    assert (again.stdout, again.stderr, path.read_text()) == (done.stdout, "", finished)


def test_a_sweep_on_private_links_is_refused(tmp_path: Path) -> None:
    """Older versions had them; one line says what to do instead."""
    path = unfinished(tmp_path)
    private = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9, "private_links": True}
    change_header(path, networks={str(tmp_path / "net.toml"): private})
    assert refused("sweep", "--from", path) == (
        f"ringsim: {path}: private_links: this setting was removed: describe hosts with a cable between each pair\n"
    )


@pytest.mark.parametrize(("preset", "goes_on"), [("gbe", True), ("dgx-h100-cluster", False)])
def test_times_of_an_older_version_without_protocols_are_not_mixed(tmp_path: Path, preset: str, goes_on: bool) -> None:
    """Older versions left NCCL's protocols out, and did not say so; without any, times are the same."""
    path = tmp_path / "cells.csv"
    small_sweep(path, preset)
    planned = SweepPlan.of(Collective.ALL_REDUCE, ["ring"], [2, 4], [8], {preset: load_network(preset)}).cells
    change_header(path, num_missing=1)
    for unknown in ((), ("timing",)):
        change_header(path, planned={key: value for key, value in encode(planned).items() if key not in unknown})
        done = invoke("sweep", "--from", path, "--csv", tmp_path / "done.csv")
        why = "its times do not include NCCL's protocols, since an older version wrote them: run the sweep again"
        stderr = f"wrote {tmp_path / 'done.csv'}\n" if goes_on else f"ringsim: {path}: {why}\n"
        assert (done.exit_code, done.stderr) == (0 if goes_on else 2, stderr)


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


def test_a_network_that_has_changed_is_not_mixed_with_what_was(tmp_path: Path) -> None:
    """Times on two networks would stand in one table."""
    path = unfinished(tmp_path)
    (tmp_path / "net.toml").write_text('[host]\nranks = 1\n[host.nic]\nbandwidth = "2GB/s"\n')
    why = "has changed since the sweep began: restore it, or run the sweep again"
    assert refused("sweep", "--from", path) == f"ringsim: {path}: network {tmp_path / 'net.toml'}: {why}\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": [4]}, "a cell of ring on 2 ranks: is not planned"),
        ({"ranks": [2, 2**40]}, "planned.ranks[1] = 1099511627776: must be a whole number from 2 to 131072"),
        ({"algorithms": "ring"}, 'planned.algorithms = "ring": must be a list'),
        ({"sizes_bytes": [0, 8]}, "planned.sizes_bytes[0] = 0: must be a whole number, at least 1"),
        (
            {"max_transfers": "many"},
            'planned.max_transfers = "many": must be null for no limit, or a number, at least 1',
        ),
        (
            {"file_hashes": {"ring": "00"}},
            "algorithm 'ring': its file has changed since the sweep began: run the sweep again",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """In one line, which names the file."""
    path = unfinished(tmp_path, change)
    told = refused("sweep", "--from", path)
    assert told.startswith(f"ringsim: {path}")
    assert message in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "2", "--dask", "tcp://a:1"], "--jobs and --dask exclude each other"),
        (["--jobs", "0"], "Invalid value for '--jobs': 0 is not in the range 1<=x<=1024."),
        (["--trust", "own.py:f"], "--trust has no effect without --from"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments: list[str], message: str) -> None:
    """In one line, before anything is simulated."""
    assert refused("sweep", *arguments) == f"ringsim sweep: {message}\n"
