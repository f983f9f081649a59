"""Tasks handed to processes of this machine and to a Dask cluster: same results, and errors in one line."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from ringsim import WorkerError, Workers
from ringsim import workers as workers_module

LIMIT_S = 120  # a hang is a failure


def squared(number: int) -> tuple[int, int]:
    """A result, and who computed it; it takes long enough for two workers to take part."""
    time.sleep(0.1)
    return number**2, os.getpid()


def refuse_three(number: int) -> int:
    """A mistake in one of the tasks."""
    if number == 3:
        raise ValueError(f"task {number}: is refused")
    return number


def die_with_three(number: int) -> None:
    """End this process with SIGKILL, as the system does when memory runs out."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)


def threads_and_interrupts(_: int) -> tuple[str | None, bool, bool]:
    """Return the threads that NumPy's libraries go by, whether Ctrl-C passes by, and whether torch is loaded."""
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return os.environ.get("OMP_NUM_THREADS"), blocked, "torch" in sys.modules


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two workers, processes of their own, each with one thread; those that end are started anew."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as local:
        yield local.scheduler_address


@pytest.fixture(params=["processes", "cluster"])
def several(request: pytest.FixtureRequest) -> Workers:
    """Two workers."""
    return Workers(jobs=2) if request.param == "processes" else Workers(dask=request.getfixturevalue("cluster"))


def test_one_process_takes_task_after_task() -> None:
    """It is this one; it goes in the order of the tasks, and computes each when it is asked for."""
    results = Workers().run(squared, [3, 1, 2])
    assert next(results) == (9, os.getpid())
    assert list(results) == [(1, os.getpid()), (4, os.getpid())]


@pytest.mark.timeout(LIMIT_S)
def test_several_give_the_same_results(several: Workers) -> None:
    """In the order of the tasks, by other processes; an error is raised as here, and hinders no second run."""
    with pytest.raises(ValueError, match=r"^task 3: is refused$"):
        list(several.run(refuse_three, range(6)))
    results = list(several.run(squared, range(8)))
    assert [result for result, _ in results] == [number**2 for number in range(8)]
    assert os.getpid() not in {pid for _, pid in results}
    assert several.count == 2


@pytest.mark.timeout(LIMIT_S)
def test_processes_have_one_core_each() -> None:
    """Ctrl-C is for this process alone, and torch is not imported."""
    assert list(Workers(jobs=2).run(threads_and_interrupts, [0])) == [("1", True, False)]
    assert not threads_and_interrupts(0)[1]


@pytest.mark.timeout(LIMIT_S)
def test_a_worker_with_another_version_is_refused(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It might find other times; the message names the versions."""
    monkeypatch.setattr(workers_module, "version", lambda _: "0.0.1")
    with pytest.raises(WorkerError, match=r"worker tcp://\S+ has ringsim \S+, here it is 0\.0\.1: must be the same$"):
        list(Workers(dask=cluster).run(squared, [1]))


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    ("several", "message"),
    [
        ("processes", r"a worker process ended: SIGKILL\(-9\); if .* fewer ranks"),
        ("cluster", r"Dask cluster tcp://\S+ cannot compute: .*"),
    ],
    indirect=["several"],
)
def test_workers_that_are_killed_are_an_error_in_one_line(several: Workers, message: str) -> None:
    """A worker's end is told, on a cluster after several workers have tried; joblib's backend for Dask would wait."""
    with pytest.raises(WorkerError, match=rf"^{message}$"):
        list(several.run(die_with_three, [3]))


def test_without_dask_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ValueError, match=r"pip install '\.\[dask\]'"):
        list(Workers(dask="tcp://127.0.0.1:1").run(squared, [1]))


def test_a_cluster_that_cannot_compute_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line: nothing listens there, or it has no workers."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(workers_module, "CONNECT_S", 1)
    monkeypatch.setattr(workers_module, "PATIENCE_S", 0.1)
    with pytest.raises(WorkerError, match=r"^Dask cluster tcp://127\.0\.0\.1:9: its scheduler does not answer: .*$"):
        list(Workers(dask="tcp://127.0.0.1:9").run(squared, [1]))
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as empty:
        told = f"Dask cluster {re.escape(empty.scheduler_address)} cannot compute: Only 0/1 workers arrived after .*"
        with pytest.raises(WorkerError, match=rf"^{told}$"):
            list(Workers(dask=empty.scheduler_address).run(squared, [1]))
