"""The programs run without what macOS lacks: sched_getaffinity, SCHED_BATCH, files in memory and seals."""

from pathlib import Path

import pytest

from tests.processes import run_python

# torch and the standard library have been written for each system: they are loaded before anything is taken away.
PROGRAM = """
import fcntl, multiprocessing.resource_tracker, os, torch.distributed, torch.multiprocessing
for name in ("sched_getaffinity", "sched_getscheduler", "sched_setscheduler", "SCHED_BATCH", "SCHED_OTHER",
             "memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "posix_fallocate"):
    delattr(os, name)
for name in ("F_ADD_SEALS", "F_SEAL_SHRINK", "F_SEAL_GROW"):
    delattr(fcntl, name)
from click.testing import CliRunner
from ringsim.cli import main
from ringsim.limits import available_cores
from collectives.runtime import have_gloo_threads_batch_policy, set_gloo_thread_policy
from trainers.cli.group import main as trainers
if __name__ == "__main__":
    for line in ("sweep --ranks 2 --sizes 8 --csv a.csv", "simulate --trace t.json", "plot --ranks 2 -o p.png"):
        done = CliRunner().invoke(main, line.split())
        assert done.exit_code == 0, (line, done.output, done.exception)
    assert available_cores() >= 1
    assert (set_gloo_thread_policy(), have_gloo_threads_batch_policy()) == (0, False)
    trainers(["train", "--task", "mlp", "--ranks", "2", "--steps", "2", "--output", "run"])
"""


@pytest.mark.slow
def test_commands_and_training_without_what_macos_lacks(tmp_path: Path) -> None:
    """Files are written, and two ranks train to the end; in a file, which ranks that are started import."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_python(str(program), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {"a.csv", "t.json", "p.png"}
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"checkpoint-2.pt", "result.json"}
