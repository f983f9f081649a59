"""A program of ranks that meet and wait, in the tests of launching. It loads no torch."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import kill_all
from trainers.launch.environment import distributed_environment
from trainers.launch.rendezvous import init_process_group

PATIENCE_S = 150.0
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from tests.trainers.launches import wait_for_it
from trainers import spawn
if __name__ == "__main__":
    sys.exit(spawn(2, wait_for_it, (sys.argv[1],)))
"""


@contextmanager
def start_ranks(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program of two ranks that meet and wait; they are ended in any case."""
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "program.py"), str(folder)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        try:
            yield process
        finally:
            kill_all(process.pid)


def wait_for_it(folder: str) -> None:
    """Meet the others, and note the process, in a file that is whole when it is there."""
    environment = distributed_environment()
    init_process_group(environment, PATIENCE_S)
    path = Path(folder, f"rank{environment.rank}")
    path.with_suffix(".tmp").write_text(str(os.getpid()))
    path.with_suffix(".tmp").rename(path)
    time.sleep(600)


def processes_of(folder: Path, num_ranks: int) -> list[int]:
    """Of the ranks that wait, when they are there."""
    deadline = time.monotonic() + PATIENCE_S
    while len(found := [int(path.read_text()) for path in folder.glob("rank?")]) < num_ranks:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found
