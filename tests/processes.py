"""Starting Python programs, and ending them with all that they have started; limits of this process."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 240
OF_A_LAUNCHER = re.compile("(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|.*SLURM.*")


def environment() -> dict[str, str]:
    """Return our variables, with this code to be imported, and without those that a launcher of the tests has set."""
    ours = {name: value for name, value in os.environ.items() if not OF_A_LAUNCHER.fullmatch(name)}
    return {**ours, "PYTHONPATH": str(ROOT)}


def start_python(*arguments: str, folder: Path = ROOT, **variables: str) -> subprocess.Popen[str]:
    """Start Python in that folder, in an environment that is no rank's, but for what is given."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": folder, "env": environment() | variables}
    return subprocess.Popen([sys.executable, *arguments], text=True, **how)


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a process; it is killed with all below it if it takes too long."""
    with process:
        try:
            out, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            if process.poll() is None:
                kill_all(process.pid)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def run_python(*arguments: str, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in that folder to its end."""
    return finish(start_python(*arguments, folder=folder, **variables))


def below(pid: int) -> list[int]:
    """All processes below a process, the nearest first; [] where there is no /proc."""
    try:
        text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:  # it has ended meanwhile
        return []
    children = [int(child) for child in text.split()]
    return [*children, *(further for child in children for further in below(child))]


def left_of(pids: Iterable[int], limit_s: float = 30.0) -> list[int]:
    """Return the processes that have not ended within that time; on a busy machine their end takes a while."""
    end_s = time.monotonic() + limit_s
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < end_s:
        time.sleep(0.05)
    return left


def kill_all(pid: int) -> None:
    """End it and all below it. It must be ours, and not yet waited for, so that the number is still its own."""
    for number in (pid, *below(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


@contextlib.contextmanager
def limited(kind: int, limit: int) -> Iterator[None]:
    """In the block this process may have no more of one of its resources."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
