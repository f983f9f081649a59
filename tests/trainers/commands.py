"""Starting the command `trainers` in tests: as a user does, or by a process that has loaded torch already."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fuzz.launcher import Launcher, Program
from tests.processes import TIMEOUT_S, below, environment, run_python
from tests.ranks import free_port
from trainers.checkpoints.output import read_log

LOG_LINE = re.compile(r"step \d+/\d+: ")
POINTS = ["--task", "tests.trainers.points:make_points", "--seed", "3", "--log-every", "1"]


def command(*arguments: str, torchrun: tuple[str, ...] = ()) -> list[str]:
    """The command line, under torchrun if there are options for that."""
    started_by = ["-m", "torch.distributed.run", "--standalone", *torchrun] if torchrun else []
    return [sys.executable, *started_by, "-m", "trainers", *arguments]


def start(*arguments: str, torchrun: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return run_python(*command(*arguments, torchrun=torchrun)[1:])


def launch(launcher: Launcher, *arguments: str, program: Program | None = None) -> subprocess.CompletedProcess[str]:
    """The same, but for loading torch: that takes each of a launch's processes seconds. program: as of `Launcher`."""
    with tempfile.TemporaryDirectory() as folder:
        errors, output = Path(folder, "stderr"), Path(folder, "stdout")
        pid = launcher.start(list(arguments), errors, output, program)
        code = launcher.wait(TIMEOUT_S)
        if code is None:
            os.killpg(pid, signal.SIGKILL)
            launcher.wait(TIMEOUT_S)
            raise AssertionError(f"still running after {TIMEOUT_S} s: {errors.read_text()}")
        return subprocess.CompletedProcess(arguments, code, output.read_text(), errors.read_text())


def ranks_below(pid: int) -> list[int]:
    """The processes of the ranks, in their order; Python's own helper is none, nor is one that has ended."""
    ranks = []
    for child in below(pid):
        with suppress(OSError):
            ranks += [child] if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes() else []
    return ranks


def wait_for_steps(log: Path, count: int, is_running: Callable[[], bool] = lambda: True) -> None:
    """Wait until so many steps are in the log, or it is running no more."""
    deadline = time.monotonic() + TIMEOUT_S
    while is_running() and len(read_log(log)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def ranks_by_hand(arguments: list[str], errors: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start two ranks as torchrun would, but without its own patience with those that stall; end them in any case.

    errors: where the first one says what it says.
    """
    world = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = []
    for rank, stderr in enumerate((errors, subprocess.DEVNULL)):
        numbers = {**world, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": 1}
        variables = environment() | {name: str(value) for name, value in numbers.items()}
        ranks.append(subprocess.Popen(arguments, env=variables, stdout=subprocess.DEVNULL, stderr=stderr, text=True))
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def read_until(terminal: int, wanted: str = "\0") -> str:
    """Return what comes from a terminal up to and with `wanted`, or up to its end."""
    seen = b""
    while wanted.encode() not in seen and select.select([terminal], [], [], TIMEOUT_S)[0]:
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
    return seen.decode()


def stalled(arguments: list[str], *shown: str) -> tuple[str, str]:
    """Start two ranks with a terminal, stop the second one when all of `shown` has come, and wait for the first's end.

    Return what came before that, and after it.
    """
    terminal, stderr = pty.openpty()
    with ranks_by_hand(arguments, stderr) as ranks:
        os.close(stderr)
        seen = "".join(read_until(terminal, wanted) for wanted in shown)
        ranks[1].send_signal(signal.SIGSTOP)
        rest = read_until(terminal)
        assert ranks[0].wait(TIMEOUT_S) == 1
    os.close(terminal)
    return seen, rest


def without_log(errors: str) -> str:
    """Return stderr without the lines of the log."""
    return "".join(line for line in errors.splitlines(keepends=True) if not LOG_LINE.match(line))


def result_of(output: Path) -> Any:
    """Return the result that the run left."""
    return json.loads((output / "result.json").read_text())
