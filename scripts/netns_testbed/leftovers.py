"""Removal of testbeds: the processes in their namespaces, then the namespaces, and nothing else."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from netns_testbed.plan import owner
from ringsim.console import endings_noted

NETNS = Path("/var/run/netns")  # where `ip netns` keeps them
DEATH_S = 10.0  # a killed process is gone at once, unless the kernel is busy on its behalf


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back Ctrl-C and similar signals until the block ends: a second signal must not stop the removal.

    A mask would affect only this thread: a thread of NumPy's libraries would take the signal, and Python would raise
    KeyboardInterrupt here.
    """
    endings: list[int] = []
    try:
        with endings_noted() as endings:
            yield
    finally:
        for number in endings[:1]:
            signal.raise_signal(number)


def run_apart(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in another session, which Ctrl-C in a terminal does not reach."""
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, start_new_session=True
    )


def clean() -> list[str]:
    """Remove the namespaces, with their processes, of testbeds whose process is dead (SIGKILL); return their names."""
    # A number that another process has taken over since counts as alive: better one left than one too many.
    found = [name for name in _namespaces() if (pid := owner(name)) is not None and not Path(f"/proc/{pid}").exists()]
    _remove(found)
    return found


def remove_testbed(name: str) -> None:
    """Remove all present namespaces of a testbed."""
    _remove([namespace for namespace in _namespaces() if namespace.startswith(f"{name}-")])


def end_processes(namespaces: Sequence[str]) -> None:
    """Kill all processes in these namespaces. Raises OSError if one does not end."""
    deadline = time.monotonic() + DEATH_S
    with signals_held():
        while left := _processes_in(namespaces):
            if time.monotonic() > deadline:
                raise OSError(f"process {left[0]} does not end: see to it, then run scripts/testbed.py --clean")
            for pid in left:
                with suppress(ProcessLookupError):  # gone by itself
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def _remove(namespaces: Sequence[str]) -> None:
    with signals_held():
        end_processes(namespaces)
        for namespace in namespaces:
            done = run_apart(["ip", "netns", "del", namespace])
            if done.returncode and (NETNS / namespace).exists():
                raise OSError(f"ip netns del {namespace}: {done.stderr.strip()}")


def _processes_in(namespaces: Sequence[str]) -> list[int]:
    wanted = {found for name in namespaces if (found := _identity(NETNS / name))}
    wanted.discard(_identity(Path("/proc/self/ns/net")))  # whatever went wrong: never those around us
    ids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    return [pid for pid in ids if _identity(Path(f"/proc/{pid}/ns/net")) in wanted]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # gone since
        return None
    return found.st_dev, found.st_ino


def _namespaces() -> list[str]:
    return sorted(os.listdir(NETNS)) if NETNS.is_dir() else []
