"""Who computes many independent tasks: this process, processes on this machine, or a Dask cluster."""

import logging
import os
import platform
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import version
from multiprocessing import resource_tracker
from types import TracebackType
from typing import Any, Self, TypeVar

from ringsim.suggestions import to_install


class WorkerError(OSError):
    """A fault of a worker, in one line; not of a task."""


@cache  # each task asks
def versions() -> dict[str, str]:
    """Return the versions that workers must share, so that all of them find the same to the last bit."""
    return {name: version(name) for name in ("ringsim", "numpy")}


def require_same_version(needed: Mapping[str, str]) -> None:
    """Raise WorkerError, which names this host, where another version is installed than `needed` says."""
    for name, installed in versions().items():
        if installed != needed[name]:
            raise WorkerError(
                f"worker on {platform.node()}: {name} {installed} is installed, here it is {needed[name]}: must be the "
                "same"
            )


ORPHAN_S = 1.0  # after which a worker sees that the process that started it is gone


class LocalPool:
    """A pool of `jobs` processes, which are started when they are first needed and kept until `close`."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._is_open = False

    def count(self) -> int:
        """Return the number of processes."""
        return self._jobs

    def run(self, call: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        """Yield what the tasks return, in the order of their ends. Raises WorkerError if a process ends."""
        from joblib import Parallel, delayed, parallel_config  # noqa: PLC0415  takes a third of a second to import

        self._is_open = True
        # Each process is to use one core: NumPy's libraries would otherwise start threads for all cores in each.
        with parallel_config(backend="loky", n_jobs=self._jobs, inner_max_num_threads=1), _interrupts_held_back():
            compute = delayed(partial(_compute, os.getpid(), call))
            results = Parallel(return_as="generator_unordered", batch_size=1)(compute(task) for task in tasks)
        try:
            yield from results
        except BrokenProcessPool as error:
            raise WorkerError(_end_of_process(str(error))) from None
        finally:
            results.close()

    def close(self) -> None:
        """End all processes."""
        if self._is_open:
            from joblib.externals.loky import get_reusable_executor  # noqa: PLC0415

            get_reusable_executor().shutdown(wait=True, kill_workers=True)
            self._is_open = False


def _compute(parent: int, call: Callable[[Any], Any], task: Any) -> Any:
    """Compute one task in a worker process."""
    _end_with(parent)
    return call(task)


@cache
def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone, even if it was killed in the middle of a task."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Keep Ctrl-C, which goes to all processes of a terminal, from what is started in this block.

    This process alone deals with it, and ends the others; they would each print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from joblib.externals.loky.backend import resource_tracker as trackers_of_loky  # noqa: PLC0415

    # Both unblock signals when they start their own process, so they must have done so before.
    resource_tracker.ensure_running()
    trackers_of_loky.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_of_process(said: str) -> str:
    """In one line, with what joblib knows of the end, such as SIGKILL(-9)."""
    codes = re.search(r"exit codes of the workers are \{(.*?)\}", said)
    if not codes:
        return f"the worker processes cannot continue: {' '.join(said.split())}"
    ends = ", ".join(dict.fromkeys(codes[1].split(", ")))
    return f"a worker process ended: {ends}; if it was killed because memory ran out, use fewer --jobs or fewer ranks"


CONNECT_S = 10  # until a scheduler must have answered
POLL_S = 1.0
PATIENCE_S = 30.0  # without any worker: one that has ended may be started anew by its nanny
LOGS = (
    "distributed",
    "distributed.client",
    "tornado.application",
)  # which say on stderr, over many lines, what we say in one


class DaskCluster:
    """A client of the scheduler at `address`, connected when it is first needed.

    tell: is passed a line for each worker that has ended.
    """

    def __init__(self, address: str, tell: Callable[[str], None]) -> None:
        self._address = address
        self._tell = tell
        self._seen: set[str] = set()  # the workers' addresses
        self._client: Any = None
        self._log_levels = {name: logging.getLogger(name).level for name in LOGS}

    def count(self) -> int:
        """Return the number of tasks that its workers compute at a time."""
        return max(sum(self._threads().values()), 1)

    def run(self, call: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        """Yield what the tasks return, in the order of their ends.

        A task whose worker ends is computed by another, and `tell` is passed a line about it. Raises WorkerError if
        several workers end with the same task, if there is none for half a minute, or if the scheduler ends.
        """
        client = self._connected()
        self._threads()
        # What has a higher priority is begun first.
        futures = [client.submit(call, task, pure=False, priority=-place) for place, task in enumerate(tasks)]
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for future in futures:
            future.add_done_callback(ended.put)
        try:
            for _ in futures:
                yield self._result(self._next(ended))
            self._threads()  # for a worker that has ended in the last second
        finally:
            client.cancel(futures, force=True)

    def _next(self, ended: "queue.SimpleQueue[Any]") -> Any:
        """Return the next future to end, as long as there are workers from which it could come."""
        seen_s = time.monotonic()
        while True:
            try:
                return ended.get(timeout=POLL_S)
            except queue.Empty:
                if self._threads():
                    seen_s = time.monotonic()
                elif time.monotonic() > seen_s + PATIENCE_S:
                    raise WorkerError(f"Dask cluster {self._address}: has had no worker for {PATIENCE_S:g} s") from None

    def _result(self, future: Any) -> Any:
        from distributed import KilledWorker  # noqa: PLC0415

        if future.status == "cancelled":
            raise WorkerError(f"Dask cluster {self._address}: the connection to its scheduler is lost")
        try:
            return future.result()
        except KilledWorker:
            raise WorkerError(
                f"Dask cluster {self._address}: several workers ended while they computed the same task; if they were "
                "killed because memory ran out, use fewer ranks, or workers with fewer threads"
            ) from None

    def _threads(self) -> dict[str, int]:
        """Return the number of threads by worker, and tell of the workers that are gone since the last call."""
        client = self._connected()
        try:
            threads: dict[str, int] = client.ncores()
        except OSError as error:
            raise self._unreachable(error) from None
        for worker in sorted(self._seen.difference(threads)):
            self._tell(f"Dask cluster {self._address}: worker {worker} has ended; other workers compute its tasks")
        self._seen = set(threads)
        return threads

    def _connected(self) -> Any:
        if self._client is None:
            try:
                from distributed import Client  # noqa: PLC0415  an extra, and slow to import
            except ModuleNotFoundError:
                raise ValueError(f"Dask is not installed, which --dask needs: {to_install('dask')}") from None
            for name in LOGS:
                logging.getLogger(name).setLevel(logging.CRITICAL)
            try:
                self._client = Client(self._address, timeout=CONNECT_S, set_as_default=False)
            except (OSError, ValueError) as error:
                raise self._unreachable(error) from None
        return self._client

    def _unreachable(self, error: Exception) -> WorkerError:
        why = " ".join(str(error).split())
        return WorkerError(f"Dask cluster {self._address}: its scheduler does not answer: {why}")

    def close(self) -> None:
        """Part from the cluster, which lives on."""
        if self._client is not None:
            self._client.close(timeout=CONNECT_S)
            self._client = None
        for name, level in self._log_levels.items():
            logging.getLogger(name).setLevel(level)


Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers:
    """Where tasks are computed: in this process, unless there are to be several processes or a cluster.

    jobs: as many processes on this machine; 1: this process alone.
    dask: the address of the scheduler of a Dask cluster, such as tcp://10.0.0.1:8786, in place of `jobs`. Its workers
    need the same versions of ringsim and NumPy, which is checked.
    tell: is passed a line for each worker of the cluster that ends and whose tasks others compute.

    To be used in a `with` block if there are several; they are started when there is the first task for them, and none
    is left when the block ends.

    Raises ValueError for less than one job, or several jobs and a cluster.

        >>> from ringsim import Workers
        >>> with Workers() as workers:
        ...     print(dict(workers.run(abs, [-3, 2])))
        {0: 3, 1: 2}
    """

    def __init__(self, jobs: int = 1, dask: str | None = None, tell: Callable[[str], None] = lambda _: None) -> None:
        if jobs < 1:
            raise ValueError(f"jobs {jobs}: must be at least 1")
        if dask is not None and jobs > 1:
            raise ValueError(f"jobs {jobs} and a Dask cluster, {dask}: give only one of them")
        self._pool = DaskCluster(dask, tell) if dask is not None else LocalPool(jobs) if jobs > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.close()

    @property
    def count(self) -> int:
        """The number of tasks that are computed at a time; of a cluster, as far as it is known now."""
        return self._pool.count() if self._pool else 1

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yield the place of a task among the tasks and what the function returns for it, in the order of their ends.

        The tasks are begun in their order, so those that take long should come first. Functions and tasks must be
        picklable where there are several workers.

        Raises what the function raises, and WorkerError if a worker ends, or is not fit for the tasks.
        """
        if not self._pool or len(tasks) == 0:
            yield from ((place, function(task)) for place, task in enumerate(tasks))
            return
        call = partial(_call, function, versions())
        try:
            yield from self._pool.run(call, list(enumerate(tasks)))
        except BaseException:
            self._pool.close()
            raise


def _call(function: Callable[[Task], Result], needed: dict[str, str], numbered: tuple[int, Task]) -> tuple[int, Result]:
    """Compute one task on a worker."""
    require_same_version(needed)
    place, task = numbered
    return place, function(task)
