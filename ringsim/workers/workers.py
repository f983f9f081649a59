"""`Workers`: the one place that knows how tasks are handed to those that compute them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from ringsim.workers.pools import DaskCluster, LocalPool, require_same_version, versions

Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers:
    """Where tasks are computed: in this process, unless there are to be several processes or a cluster.

    jobs: as many processes on this machine; 1: this process alone.
    dask: the address of the scheduler of a Dask cluster, such as tcp://10.0.0.1:8786, in place of `jobs`. Its workers
    need the same versions of ringsim and NumPy, which is checked.

    To be used in a `with` block if there are several; they are started when there is the first task for them, and none
    is left when the block ends.

    Raises ValueError for less than one job, or several jobs and a cluster.

        >>> from ringsim import Workers
        >>> with Workers() as workers:
        ...     print(dict(workers.run(abs, [-3, 2])))
        {0: 3, 1: 2}
    """

    def __init__(self, jobs: int = 1, dask: str | None = None) -> None:
        if jobs < 1:
            raise ValueError(f"jobs {jobs}: must be at least 1")
        if dask is not None and jobs > 1:
            raise ValueError(f"jobs {jobs} and a Dask cluster, {dask}: give one of both")
        self._pool = DaskCluster(dask) if dask is not None else LocalPool(jobs) if jobs > 1 else None

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
