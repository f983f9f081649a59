"""`LocalPool`: worker processes on this machine, by joblib."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import resource_tracker
from typing import Any

from ringsim.workers.error import WorkerError

ORPHAN_S = 1.0  # after which a worker sees that the process that started it is gone


class LocalPool:
    """So many processes, started when they are first needed and kept until `close`."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._is_open = False

    def count(self) -> int:
        """The number of processes."""
        return self._jobs

    def run(self, call: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        """Yields what the tasks return, in the order of their ends. Raises WorkerError if a process ends."""
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
    """What a worker process does for one task."""
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
    """What is started in this block does not see Ctrl-C, which goes to all processes of a terminal.

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
        return f"the worker processes cannot go on: {' '.join(said.split())}"
    ends = ", ".join(dict.fromkeys(codes[1].split(", ")))
    return f"a worker process ended: {ends}; if it was killed for want of memory, take fewer --jobs or fewer ranks"
