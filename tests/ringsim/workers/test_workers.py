"""Tasks handed to processes of this machine and to a Dask cluster: same results, and nothing left behind."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringsim import workers as workers_module
from ringsim.workers import WorkerError, Workers
from tests.processes import left_of

LIMIT_S = 120  # a hang is a failure


def squared(number: int) -> tuple[int, int]:
    """A result, and who computed it."""
    return number**2, os.getpid()


def squared_with_one(number: int) -> tuple[int, int]:
    """It takes long enough for two workers to take part."""
    time.sleep(0.1)
    return squared(number)


def refuse_three(number: int) -> int:
    """A mistake in one of the tasks."""
    if number == 3:
        raise ValueError(f"task {number}: is refused")
    return number


def die_with_three(number: int) -> int:
    """As if the system had run out of memory."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def threads_of_libraries(_: int) -> str | None:
    """Return the number of threads that OpenMP, and with it NumPy's libraries, go by."""
    return os.environ.get("OMP_NUM_THREADS")


def blocks_interrupts(_: int) -> bool:
    """Whether Ctrl-C, which goes to all processes of a terminal, passes this one by."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_one_process_takes_task_after_task() -> None:
    """It is this one; it goes in the order of the tasks, and computes each when it is asked for."""
    with Workers() as workers:
        results = workers.run(squared, [3, 1, 2])
        assert next(results) == (0, (9, os.getpid()))
        assert list(results) == [(1, (1, os.getpid())), (2, (4, os.getpid()))]
        assert workers.count == 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, processes of their own, each with one thread; those that end are started anew."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=None) as local:
        yield local


@pytest.fixture(params=["processes", "cluster"])
def several(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options for two workers."""
    if request.param == "processes":
        return {"jobs": 2}
    return {"dask": request.getfixturevalue("cluster").scheduler_address}


@pytest.mark.timeout(LIMIT_S)
def test_several_give_the_same_results(several: dict[str, Any]) -> None:
    """Each with its place; other processes computed them; also for a second run, in a second block."""
    for _ in range(2):
        with Workers(**several) as workers:
            results = dict(workers.run(squared_with_one, list(range(8))))
            assert dict(workers.run(squared, [5]))[0][0] == 25
            assert workers.count == 2
        assert {place: result for place, (result, _) in results.items()} == {place: place**2 for place in range(8)}
        assert os.getpid() not in {pid for _, pid in results.values()}


@pytest.mark.timeout(LIMIT_S)
def test_the_error_of_a_task_is_raised(several: dict[str, Any]) -> None:
    """As if this process had computed it."""
    with Workers(**several) as workers, pytest.raises(ValueError, match=r"^task 3: is refused$"):
        list(workers.run(refuse_three, list(range(6))))


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("fails", [False, True])
def test_processes_have_one_core_each_and_end(fails: bool) -> None:
    """Also if a task fails; Ctrl-C is for this process alone."""
    with Workers(jobs=2) as workers:
        pids = {pid for _, (_, pid) in workers.run(squared_with_one, list(range(4)))}
        assert dict(workers.run(threads_of_libraries, [0])) == {0: "1"}
        assert dict(workers.run(blocks_interrupts, [0])) == {0: True}
        assert not blocks_interrupts(0)
        if fails:
            with pytest.raises(ValueError, match="task 3"):
                list(workers.run(refuse_three, list(range(6))))
    assert left_of(pids) == []


@pytest.mark.timeout(LIMIT_S)
def test_a_worker_that_is_killed_is_an_error_in_one_line() -> None:
    """With the signal, and what to do; what was computed before has been told; no process is left."""
    with Workers(jobs=2) as workers:
        pids = {pid for _, (_, pid) in workers.run(squared, [1, 2])}
        with pytest.raises(WorkerError, match=r"^a worker process ended: SIGKILL\(-9\); if .* fewer ranks$"):
            list(workers.run(die_with_three, list(range(6))))
    assert left_of(pids) == []


def test_a_worker_with_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It might find other times; the message names the versions."""
    monkeypatch.setattr(workers_module, "versions", lambda: {"ringsim": "0.0.1", "numpy": "1"})
    with Workers(jobs=2) as workers, pytest.raises(WorkerError, match=r"ringsim \S+ is installed, here it is 0\.0\.1"):
        list(workers.run(squared, [1]))


@pytest.mark.parametrize(
    ("jobs", "dask", "message"), [(0, None, "jobs 0: must be at least 1"), (2, "tcp://a:1", "give only one of them")]
)
def test_senseless_workers_are_refused(jobs: int, dask: str | None, message: str) -> None:
    """Before anything is started."""
    with pytest.raises(ValueError, match=message):
        Workers(jobs, dask)


def test_without_dask_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        Workers(dask="tcp://127.0.0.1:1") as workers,
        pytest.raises(ValueError, match=r"pip install '\.\[dask\]'"),
    ):
        list(workers.run(squared, [1]))


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_task_that_ends_one_worker_of_a_cluster_is_computed_by_another(cluster: Any, tmp_path: Path) -> None:
    """One line tells of it. Only if it ends several it is an error, of which joblib's own backend would never hear."""
    once = tmp_path / "once"

    def die_once(number: int) -> int:
        if number == 3 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    lines: list[str] = []
    with Workers(dask=cluster.scheduler_address, tell=lines.append) as workers:
        assert dict(workers.run(squared, [1, 2])).keys() == {0, 1}
        assert lines == []
        assert dict(workers.run(die_once, list(range(6)))) == {place: place for place in range(6)}
        assert [re.sub(r"tcp://[\d.]+:\d+", "ADDRESS", line) for line in lines] == [
            "Dask cluster ADDRESS: worker ADDRESS has ended; other workers compute its tasks"
        ]
        with pytest.raises(WorkerError, match=r"^Dask cluster .*: several workers ended while they computed the same"):
            list(workers.run(die_with_three, [3]))


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line; nothing listens there."""
    pytest.importorskip("distributed")
    monkeypatch.setattr("ringsim.workers.CONNECT_S", 1)
    with (
        Workers(dask="tcp://127.0.0.1:9") as workers,
        pytest.raises(WorkerError, match=r"^Dask cluster tcp://127\.0\.0\.1:9: its scheduler does not answer: .*$"),
    ):
        list(workers.run(squared, [1]))
