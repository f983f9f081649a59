"""A group of processes: when one fails, or this process must end, the others end too."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait

from netns_testbed.leftovers import signals_held

SLEEP_S = 1.0
GRACE_S = 10.0  # for torchrun to end its ranks; what is left in the namespaces is killed then


@dataclass(frozen=True, slots=True)
class Ending:
    """The result: 0, or the exit code of the first host to fail; 128 + n: by signal n, as in a shell."""

    exit_code: int
    failed_host: int | None = None


def run_together(commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> Ending:
    """Run a command for each host; on return, all commands have ended."""
    jobs: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            # In a session of its own: Ctrl-C reaches us alone, and not every rank prints a traceback for it.
            with signals_held():  # until it is known whom to end
                job = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
                jobs.append(job)
        return _first_failure(jobs)
    finally:
        with signals_held():
            _end(jobs)


def _first_failure(jobs: Sequence[subprocess.Popen[bytes]]) -> Ending:
    with _descriptors(jobs) as running:
        while running:
            # Sleep till one ends: polling often would cost the ranks' cores. But of several signals at once a thread of
            # NumPy's libraries may take all, and then none wakes this one: their handlers run after the sleep.
            for descriptor in wait(list(running), SLEEP_S):
                assert isinstance(descriptor, int)
                host = running.pop(descriptor)
                os.close(descriptor)
                if status := jobs[host].wait():
                    return Ending(status if status > 0 else 128 - status, host)
    return Ending(0)


@contextmanager
def _descriptors(jobs: Sequence[subprocess.Popen[bytes]]) -> Iterator[dict[int, int]]:
    running: dict[int, int] = {}
    try:
        for host, job in enumerate(jobs):
            running[os.pidfd_open(job.pid)] = host
        yield running
    finally:
        for descriptor in running:
            os.close(descriptor)


def _end(jobs: Sequence[subprocess.Popen[bytes]]) -> None:
    for job in jobs:
        job.terminate()  # nothing to one that has ended
    deadline = time.monotonic() + GRACE_S
    for job in jobs:
        try:
            job.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
