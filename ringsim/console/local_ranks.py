"""`run_local_ranks`: torchrun on this machine, to its end; what ends us ends its ranks too."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence

from ringsim.console.signals import endings_noted

# It brings torch with it; we only start it. By itself it ends in a traceback of its own, whether a signal ends it or a
# rank fails, which then has said why; and it warns of each signal that it passes on.
PROGRAM = """
import logging
import sys

logging.disable(logging.WARNING)
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

try:
    main()
except SignalException as ended:
    sys.exit(128 + ended.sigval)
except ChildFailedError as failed:
    sys.exit(max(failed.get_first_failure()[1].exitcode, 1))
"""
TORCHRUN = (sys.executable, "-c", PROGRAM, "--standalone")
MEANWHILE_S = 0.5
GRACE_S = 40.0  # for torchrun to end its ranks: it leaves them 30 s itself, and nobody else could end them after it


def check_local_rank(num_ranks: int, arguments: Sequence[str]) -> str:
    """Run a program once, as if it were the first of `num_ranks` ranks, and return its output.

    arguments: as of `run_local_ranks`, with an option that makes the program only check its options. Errors in them are
    then printed once, on one line; torchrun would add its own traceback.

    Raises ValueError with the program's last line on stderr if it fails.
    """
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    environment = os.environ | ranks | {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        *_, last = done.stderr.splitlines() or [f"{shlex.join(command)} ended with exit code {done.returncode}"]
        raise ValueError(last)
    return done.stdout


def run_local_ranks(
    num_ranks: int, arguments: Sequence[str], *, quiet: bool = False, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Run torchrun with `num_ranks` ranks on this host, to its end.

    arguments: what torchrun takes as script: a file and its arguments, or `-m` and a module.
    quiet: what the ranks print is left out, and what they say on stderr is kept for the error.
    meanwhile: called every half second until they have ended.

    On Ctrl-C, SIGTERM and SIGHUP alike torchrun and its ranks are ended and KeyboardInterrupt is raised. To be called
    in the main thread. Raises OSError, which names the command, if it fails.
    """
    given = ["--nproc-per-node", str(num_ranks), *arguments]
    # In a session of its own: Ctrl-C reaches us alone, and the ranks do not die each with a traceback of its own.
    with (
        endings_noted() as endings,
        subprocess.Popen(
            [*TORCHRUN, *given],
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            start_new_session=True,
        ) as job,
    ):
        try:
            errors = _wait(job, meanwhile, endings)
        except BaseException:
            _end(job)
            raise
    if endings:  # as the job ended by itself
        raise KeyboardInterrupt(endings[0])
    if job.returncode:
        said = f":\n{errors.strip()}" if quiet else "; its output is above"
        raise OSError(f"torchrun {shlex.join(given)} ended with exit code {job.returncode}{said}")


def _wait(job: subprocess.Popen[str], meanwhile: Callable[[], object], endings: list[int]) -> str:
    """Return what it has said on stderr when it has ended. Raises KeyboardInterrupt if a signal is noted."""
    while not endings:
        try:
            return job.communicate(timeout=MEANWHILE_S)[1]
        except subprocess.TimeoutExpired:
            meanwhile()
    raise KeyboardInterrupt(endings[0])


def _end(job: subprocess.Popen[str]) -> None:
    job.terminate()
    try:
        job.communicate(timeout=GRACE_S)  # not `wait`: it may have more to say than a pipe holds
    except subprocess.TimeoutExpired:
        job.kill()
