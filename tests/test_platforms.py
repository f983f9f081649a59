"""The programs run without the features that other systems lack.

macOS has no sched_getaffinity, no SCHED_BATCH, no files in memory and no seals. Windows has no SIGHUP, SIGKILL,
SIGUSR1, signal masks, flock and fork, and cannot open a directory.
"""

import subprocess
from pathlib import Path

import pytest

from tests.processes import run_python

# torch and the standard library have been written for each system: they are loaded before anything is taken away.
TAKE_AWAY = """
import json, multiprocessing.resource_tracker, os, signal, subprocess, sys, tempfile, threading, time
from pathlib import Path
from types import SimpleNamespace
import numpy, click
LOADED
multiprocessing.resource_tracker.signal = SimpleNamespace(**vars(signal))  # which is for systems that have all of it
def take(module, *names):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
take(os, "sched_getaffinity", "sched_getscheduler", "sched_setscheduler", "SCHED_BATCH", "SCHED_OTHER")
take(os, "memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "posix_fallocate")
if SYSTEM == "macOS":
    import fcntl
    take(fcntl, "F_ADD_SEALS", "F_SEAL_SHRINK", "F_SEAL_GROW")
if SYSTEM == "Windows":
    take(os, "register_at_fork", "fork", "O_DIRECTORY", "O_CLOEXEC", "pwrite", "sysconf", "set_blocking", "getloadavg")
    take(signal, "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pthread_sigmask")
    sys.modules["fcntl"] = None
    really_open = os.open
    def open_file(path, flags, *rest, **more):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, flags, *rest, **more)
    os.open = open_file
"""
COMMANDS = """
from click.testing import CliRunner
from ringsim.cli import main
for line in ("sweep --ranks 2 --sizes 8 --csv a.csv -o a.png", "simulate --trace t.json", "plot --ranks 2 -o p.png",
             "order --ranks 4 --budget 1 -o o.json", "networks", "algorithms", "export --format goal -o g.goal"):
    done = CliRunner().invoke(main, line.split())
    assert done.exit_code == 0, (line, done.output, done.exception)
from ringsim.console import ended_once, local_ranks
local_ranks.TORCHRUN = (sys.executable, "-c", "print('ranks')")
local_ranks.run_local_ranks(2, ["script.py"], quiet=True)
from trainers.checkpoints.output import locked
told = []
with locked(Path(), told.append):
    pass
assert told == (["--output .: cannot be locked (this system has no flock): make sure that no other run writes there"]
                if SYSTEM == "Windows" else []), told
from trainers.cli.group import main as trainers
assert CliRunner().invoke(trainers, ["train", "--help"]).exit_code == 0
"""
TRAINING = """
from ringsim.limits import available_cores
from collectives.runtime import have_gloo_threads_batch_policy, set_gloo_thread_policy
from trainers.launch.signals import delay_termination
if __name__ == "__main__":
    assert available_cores() >= 1
    assert (set_gloo_thread_policy(), have_gloo_threads_batch_policy()) == (0, False)
    delay_termination(lambda: False)
    from trainers.cli.group import main
    main(["train", "--task", "mlp", "--ranks", "2", "--steps", "2", "--output", "run"])
"""


def run(system: str, program: str, folder: Path, loaded: str = "") -> subprocess.CompletedProcess[str]:
    """The program, with that taken away which the system lacks; in a file, which ranks that are started import."""
    file = folder / "program.py"
    file.write_text(f"SYSTEM = {system!r}\n{TAKE_AWAY.replace('LOADED', loaded)}{program}")
    return run_python(str(file), folder=folder)


@pytest.mark.parametrize("system", ["macOS", "Windows"])
def test_commands(system: str, tmp_path: Path) -> None:
    """Files are written, ranks started, directories taken for one run."""
    done = run(system, COMMANDS, tmp_path)
    assert done.returncode == 0, done.stderr
    names = {"a.csv", "a.png", "t.json", "p.png", "o.json", "g.goal"}
    assert names <= {path.name for path in tmp_path.iterdir()}


# All that the first lacks the other one lacks, too, but for a part of fcntl.
@pytest.mark.parametrize("system", [pytest.param("macOS", marks=pytest.mark.slow), "Windows"])
def test_training_on_two_ranks(system: str, tmp_path: Path) -> None:
    """To its end, with a checkpoint."""
    done = run(system, TRAINING, tmp_path, "import torch.distributed, torch.multiprocessing")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"checkpoint-2.pt", "result.json"}
