"""`Workers`: run independent tasks in this process, in local processes or on a Dask cluster."""

import logging
import re
import signal
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from ringsim.suggestions import to_install

IDLE_S = 10  # after which a process of ours ends that has nothing to do, also if we were killed
CONNECT_S = 10  # until a scheduler must have answered
POLL_S = 0.02
PATIENCE_S = 30.0  # without any worker: one that has ended may be started anew by its nanny
SHARED_VERSIONS = ("ringsim", "numpy")  # must be the same on all workers, so that they find the same to the last bit

Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkerError(OSError):
    """A fault of a worker, not of a task, in one line."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Where tasks are computed.

    jobs: number of local processes; 1: this process alone.
    dask: instead, the scheduler of a Dask cluster, such as tcp://10.0.0.1:8786; its workers must have the same versions
    of ringsim and NumPy.

    Raises ValueError for less than one job, several jobs and a cluster, or an invalid address.

        >>> from ringsim import Workers
        >>> list(Workers().run(abs, [-3, 2]))
        [3, 2]
    """

    jobs: int = 1
    dask: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs {self.jobs}: must be at least 1")
        if self.dask is not None and self.jobs > 1:
            raise ValueError(f"jobs {self.jobs} and a Dask cluster, {self.dask}: give only one of them")
        if self.dask is not None and not re.search(r":\d+$|^inproc:", self.dask):
            raise ValueError(f"Dask cluster {self.dask!r}: must be an address such as tcp://10.0.0.1:8786")

    @property
    def count(self) -> int:
        """The number of tasks computed at a time; a cluster's may change."""
        return self.jobs if self.dask is None else max(sum(_client(self.dask).ncores().values()), 1)

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Generator[Result, None, None]:
        """Yield the result of the function for each task.

        Tasks start in their order: long ones should come first. With several workers, functions and tasks must be
        picklable. Closing the iterator ends the running tasks.

        Raises the function's errors, and WorkerError if a worker ends or is unfit.
        """
        if self.dask is not None:
            yield from _run_on_cluster(self.dask, function, tasks)
        elif self.jobs > 1:
            yield from _run_in_processes(self.jobs, function, tasks)
        else:
            yield from map(function, tasks)


def _run_in_processes(
    jobs: int, function: Callable[[Task], Result], tasks: Sequence[Task]
) -> Generator[Result, None, None]:
    from joblib import Parallel, delayed, parallel_config  # noqa: PLC0415  takes a third of a second to import
    from joblib.externals.loky.backend import resource_tracker as tracker_of_loky  # noqa: PLC0415

    warnings.filterwarnings("ignore", r"\d+ tasks (which|have)", UserWarning)  # where this is closed
    # Each process is to use one core: NumPy's libraries would otherwise start threads for all cores in each.
    with parallel_config(backend="loky", n_jobs=jobs, inner_max_num_threads=1, idle_worker_timeout=IDLE_S):
        # Ctrl-C, which goes to all processes of a terminal, is for this one to deal with.
        for tracker in (resource_tracker, tracker_of_loky):
            tracker.ensure_running()  # it unblocks signals when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            results = Parallel(return_as="generator")(delayed(function)(task) for task in tasks)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield from results
    except BrokenProcessPool as error:
        codes = re.search(r"exit codes of the workers are \{(.*?)\}", str(error))
        ends = ", ".join(dict.fromkeys(codes[1].split(", "))) if codes else "its exit code is not known"
        reason = "if it was killed because memory ran out, use fewer --jobs or fewer ranks"
        raise WorkerError(f"a worker process ended: {ends}; {reason}") from None


def _run_on_cluster(
    address: str, function: Callable[[Task], Result], tasks: Sequence[Task]
) -> Generator[Result, None, None]:
    """Yield the results; joblib's backend for Dask waits forever for tasks of killed workers."""
    client = _client(address)
    from distributed import KilledWorker  # noqa: PLC0415

    futures = []
    try:
        client.wait_for_workers(1, timeout=PATIENCE_S)
        _require_same_versions(address, client)
        futures = client.map(function, tasks, pure=False)
        for future in futures:
            while future.status == "pending":
                client.wait_for_workers(1, timeout=PATIENCE_S)
                time.sleep(POLL_S)
            yield future.result(timeout=PATIENCE_S)
    except (CancelledError, KilledWorker, TimeoutError) as error:
        raise WorkerError(f"Dask cluster {address} cannot compute: {' '.join(str(error).split())}") from None
    finally:
        client.cancel(futures, force=True)


def _require_same_versions(address: str, client: Any) -> None:
    for worker, known in client.get_versions(packages=SHARED_VERSIONS)["workers"].items():
        for name in SHARED_VERSIONS:
            theirs, ours = known["packages"][name], version(name)
            if theirs != ours:
                reason = f"worker {worker} has {name} {theirs}, here it is {ours}: must be the same"
                raise WorkerError(f"Dask cluster {address}: {reason}")


@cache
def _client(address: str) -> Any:
    try:
        from distributed import Client  # noqa: PLC0415  an extra, and slow to import
    except ModuleNotFoundError:
        raise ValueError(f"Dask is not installed, which --dask needs: {to_install('dask')}") from None
    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they log over many lines what WorkerError tells in one
    try:
        return Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise WorkerError(f"Dask cluster {address}: its scheduler does not answer: {why}") from None
