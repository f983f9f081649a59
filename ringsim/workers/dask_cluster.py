"""`DaskCluster`: the workers of an existing Dask cluster."""

import logging
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ringsim.workers.error import WorkerError

CONNECT_S = 10  # until a scheduler must have answered
POLL_S = 1.0
PATIENCE_S = 30.0  # without any worker: one that has ended may be started anew by its nanny
LOGS = (
    "distributed",
    "distributed.client",
    "tornado.application",
)  # which say on stderr, over many lines, what we say in one


class DaskCluster:
    """A client of the scheduler at `address`, connected when it is first needed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Any = None
        self._log_levels = {name: logging.getLogger(name).level for name in LOGS}

    def count(self) -> int:
        """The number of tasks that its workers compute at a time."""
        return max(self._num_threads(), 1)

    def run(self, call: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        """Yields what the tasks return, in the order of their ends.

        A task whose worker ends is computed by another. Raises WorkerError if several workers end with the same task,
        if there is none for half a minute, or if the scheduler ends.
        """
        client = self._connected()
        # What has a higher priority is begun first.
        futures = [client.submit(call, task, pure=False, priority=-place) for place, task in enumerate(tasks)]
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for future in futures:
            future.add_done_callback(ended.put)
        try:
            for _ in futures:
                yield self._result(self._next(ended))
        finally:
            client.cancel(futures, force=True)

    def _next(self, ended: "queue.SimpleQueue[Any]") -> Any:
        """The next future to end, as long as there are workers from which it could come."""
        seen_s = time.monotonic()
        while True:
            try:
                return ended.get(timeout=POLL_S)
            except queue.Empty:
                if self._num_threads():
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
                "killed for want of memory, take fewer ranks, or workers with fewer threads"
            ) from None

    def _num_threads(self) -> int:
        client = self._connected()
        try:
            return sum(client.ncores().values())
        except OSError as error:
            raise self._unreachable(error) from None

    def _connected(self) -> Any:
        if self._client is None:
            try:
                from distributed import Client  # noqa: PLC0415  an extra, and slow to import
            except ModuleNotFoundError:
                raise ValueError("Dask is not installed, which --dask needs: pip install 'ringsim[dask]'") from None
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
