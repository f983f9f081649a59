"""Open MPI as a rival of the benchmark: what is refused, what is asked of its ranks, and how they end.

Where a test needs no Open MPI, a script takes the place of mpirun.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch.distributed as dist
from click.testing import CliRunner

from collectives.benchmark import mpirun as mpirun_module
from collectives.benchmark.buffers import Buffers
from collectives.benchmark.case import BenchmarkCase
from collectives.benchmark.command import main
from collectives.benchmark.job import run_plan
from collectives.benchmark.mpi_library import buffers_of, has_collective
from collectives.benchmark.mpirun import Mpirun, openmpi_provenance, openmpi_version, reason_of
from collectives.benchmark.openmpi import OpenMpi, openmpi
from collectives.benchmark.openmpi_rank import OpenMpiRank, case_command, line_of
from collectives.benchmark.pattern import pattern
from collectives.benchmark.plan import BenchmarkPlan
from collectives.runtime import CollectiveError
from ringsim.measurements.measurements import Measurements
from ringsim.schedule.collective import Collective
from tests.processes import below, kill_all
from tests.ranks import RankPool

PLAN = BenchmarkPlan(tuple(Collective), (), (64, 1000), iterations=2, calls=2, warm_up=1, openmpi=True)
CASE = BenchmarkCase(Collective.ALL_REDUCE, 250, "float32", "sum", 1, in_place=False)
VERSION = 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; exit 0; fi\n'
START_S = 100.0
needs_openmpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI (Debian: openmpi-bin)")


@pytest.fixture
def fake_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a script of these lines first in PATH, by the name of mpirun; returns the folder."""

    def put(lines: str) -> Path:
        script = tmp_path / "mpirun"
        script.write_text(f"#!/bin/sh\n{lines}")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return tmp_path

    return put


def test_without_mpirun_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line and exit code 2, before the ranks meet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    torchrun = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 1}
    for name, value in {**torchrun, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    done = CliRunner().invoke(main, ["--openmpi", "--check"])
    assert (done.exit_code, done.stdout) == (2, "")
    said = "--openmpi: mpirun is not in PATH: install Open MPI (Debian: apt install openmpi-bin)"
    assert done.stderr == f"benchmark: {said}\n"


def test_the_mpirun_of_another_mpi_is_refused(fake_mpirun: Callable[[str], Path]) -> None:
    """The message says what the program said of itself."""
    folder = fake_mpirun('echo "HYDRA build details:"\n')
    with pytest.raises(ValueError, match=rf"--openmpi: {folder}/mpirun is not Open MPI's, but says 'HYDRA build deta"):
        openmpi_version()


def test_several_hosts_are_refused() -> None:
    """The others' rows would be of the network, and Open MPI's of one host."""
    with pytest.raises(ValueError, match="--openmpi: compares ranks of one host only; 2 of 4 are on this one"):
        PLAN.check(4, 2)


def test_the_provenance_names_version_and_parameters(
    fake_mpirun: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both what is set here and what the user has set."""
    fake_mpirun(VERSION)
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")
    assert openmpi_provenance() == {"openmpi": "4.1.4", "openmpi_settings": "btl=self,tcp mpi_yield_when_idle=1"}


@pytest.mark.parametrize(
    ("change", "has"),
    [
        ({}, True),
        ({"dtype": "int64", "op": "max"}, True),
        ({"dtype": "uint8", "op": "bxor"}, True),
        ({"dtype": "bfloat16"}, False),
        ({"dtype": "float16"}, False),
        ({"op": "avg"}, False),
        ({"num_elements": 2**31}, False),
        ({"collective": Collective.ALL_GATHER, "op": "none"}, True),
    ],
)
def test_cells_that_mpi_has_not(change: dict[str, object], has: bool) -> None:
    """They have no row: there is no type, no operation, or no int that counts so far."""
    assert has_collective(replace(CASE, **change)) is has  # type: ignore[arg-type]


def test_reduce_scatter_in_place_ends_at_the_beginning() -> None:
    """Where MPI puts it; torch puts it where the rank's share was."""
    case = replace(CASE, collective=Collective.REDUCE_SCATTER, num_ranks=2, in_place=True)
    buffers = Buffers.of(pattern(case, seed=0), rank=1)
    assert buffers_of(buffers, case).output.data_ptr() == buffers.input.data_ptr()
    assert len(buffers_of(buffers, case).output) == case.share


class FakeLibrary:
    """In place of MpiLibrary, for one rank: an all_reduce that may leave out an element."""

    def __init__(self, num_right: int) -> None:
        self.num_right, self.done = num_right, ""

    def barrier(self) -> None:
        """Noted."""
        self.done += "b"

    def collective(self, case: BenchmarkCase, buffers: Buffers, rank: int) -> Callable[[], object]:
        """The sum of one rank is what it gives."""
        assert (case, rank) == (CASE, 0)

        def call() -> None:
            self.done += "c"
            buffers.output[: self.num_right] = buffers.input[: self.num_right]

        return call


@pytest.mark.parametrize(("num_right", "wrong"), [(250, 0), (249, 1)])
def test_a_rank_does_what_it_is_told(num_right: int, wrong: int) -> None:
    """It looks at its result once for each case; a turn is a barrier and as many calls as asked for."""
    library = FakeLibrary(num_right)
    rank = OpenMpiRank(library, 0)  # type: ignore[arg-type]
    assert rank.answer(case_command(CASE, seed=0)) == {"wrong": wrong}
    answer = rank.answer({"calls": 3})
    assert answer["begin_s"] <= answer["end_s"] <= time.perf_counter()
    assert library.done == "cbccc"


@pytest.fixture
def connection() -> Iterator[tuple[OpenMpi, socket.socket]]:
    """A connection of rank 1, and the end that is Open MPI's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        mpi = OpenMpi(1, server.accept()[0], None, timeout_s=0.2)
    with theirs:
        yield mpi, theirs
    mpi.close()


def test_commands_and_answers_are_lines(connection: tuple[OpenMpi, socket.socket]) -> None:
    """Of JSON, one for one."""
    mpi, theirs = connection
    theirs.sendall(line_of({"begin_s": 1.0, "end_s": 1.5}))
    assert mpi.implementation(CASE, 0).turn(None, 8) == (1.0, 1.5)  # type: ignore[union-attr, arg-type]
    assert theirs.recv(100) == b'{"calls": 8}\n'
    theirs.sendall(line_of({"wrong": 2}))
    assert mpi.implementation(CASE, 7).count_wrong(None, None, 1) == 2  # type: ignore[union-attr, arg-type]
    assert theirs.recv(1000).endswith(b'"in_place": false}, "seed": 7}\n')


def test_a_rank_that_does_not_answer_is_an_error(connection: tuple[OpenMpi, socket.socket]) -> None:
    """Within the timeout."""
    with pytest.raises(CollectiveError, match=r"Open MPI's rank 1 gave no answer within 0\.2 s: give a longer --time"):
        connection[0].ask({"calls": 8})


@pytest.mark.parametrize("half", [b"", b'{"begin_s": 1.'])
def test_a_rank_that_ends_is_an_error(connection: tuple[OpenMpi, socket.socket], half: bytes) -> None:
    """Also in the middle of a line."""
    mpi, theirs = connection
    theirs.sendall(half)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(CollectiveError, match="Open MPI's rank 1 has ended: rank 0 says why"):
        mpi.ask({"calls": 8})


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", ""),
        ("Traceback (most\n  File x\nOSError: no libmpi\n-----\nmpirun detected that\n", "OSError: no libmpi"),
        (
            "-----\nmpirun noticed that rank 1 exited on\nsignal 9\n----\n",
            "mpirun noticed that rank 1 exited on signal 9",
        ),
        ("something\nelse\n\n", "else"),
    ],
)
def test_the_reason_is_one_line(output: str, reason: str) -> None:
    """An exception's, or else mpirun's, which may be two lines, or else the last."""
    assert reason_of(output) == reason


@pytest.mark.parametrize("stubborn", [False, True])
def test_mpirun_is_ended_after_an_error(
    fake_mpirun: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    """Also if it takes no notice of SIGTERM, and after Ctrl-C, which is an exception like others."""
    trap = "trap '' TERM\n" if stubborn else ""
    folder = fake_mpirun(f'{trap}touch "$(dirname "$0")/started"\nwhile true; do sleep 0.1; done\n')
    monkeypatch.setattr(mpirun_module, "END_S", 0.5)
    mpirun = Mpirun([1, 2])
    with pytest.raises(KeyboardInterrupt):
        interrupted(mpirun, folder / "started")
    assert mpirun.has_ended()


def interrupted(mpirun: Mpirun, started: Path) -> None:
    """Ctrl-C when the script has begun."""
    with mpirun:
        while not started.exists():
            time.sleep(0.01)
        assert not mpirun.has_ended()
        raise KeyboardInterrupt


def refused(group: dist.ProcessGroup, path: str) -> str:
    """How a start fails with what is in PATH."""
    with (
        mock.patch.dict(os.environ, PATH=path),
        pytest.raises(CollectiveError) as caught,
        openmpi(group, timeout_s=20.0),
    ):
        pass
    return str(caught.value)


def test_a_failed_start_is_told_on_every_rank(ranks: RankPool, fake_mpirun: Callable[[str], Path]) -> None:
    """With what mpirun said."""
    fake_mpirun('echo "OSError: libmpi.so.40: cannot open"; exit 3\n')
    messages = ranks.run(refused, os.environ["PATH"], num_ranks=2)
    reason = "Open MPI did not start: OSError: libmpi.so.40: cannot open"
    assert messages == [f"rank 0: {reason}", f"rank 1: {reason}"]


def planned(group: dist.ProcessGroup, plan: BenchmarkPlan) -> Measurements:
    """What a benchmark of `plan` finds."""
    return run_plan(plan, group, timeout_s=100.0)


@needs_openmpi
@pytest.mark.parametrize("num_ranks", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_openmpi_takes_part(ranks: RankPool, num_ranks: int) -> None:
    """In every collective, in and out of place, with nothing wrong, and the same on every rank."""
    results = ranks.run(planned, PLAN, num_ranks=num_ranks)
    assert all(result.collectives == results[0].collectives for result in results)
    rows = [times for times in results[0].collectives if times.algorithm == "openmpi"]
    assert len(rows) == len(Collective) * 2 * 2
    assert [(times.wrong, len(times.times_s), times.calls) for times in rows] == [(0, 2, 2)] * len(rows)
    assert {times.in_place for times in rows} == {False, True}
    assert results[0].provenance["openmpi"] == openmpi_version()


@needs_openmpi
@pytest.mark.slow  # a start of Open MPI each
@pytest.mark.parametrize(("dtype", "op"), [("float64", "max"), ("int32", "min"), ("int64", "prod"), ("uint8", "bxor")])
def test_types_and_operations(ranks: RankPool, dtype: str, op: str) -> None:
    """MPI's are those that torch calls so."""
    plan = replace(PLAN, collectives=(Collective.ALL_REDUCE, Collective.REDUCE_SCATTER), dtype=dtype, op=op)
    (first, *_) = ranks.run(planned, plan, num_ranks=2)
    rows = [times for times in first.collectives if times.algorithm == "openmpi"]
    assert [times.wrong for times in rows] == [0] * 8


@needs_openmpi
def test_a_type_that_mpi_has_not_has_no_row(ranks: RankPool) -> None:
    """The others are timed all the same."""
    plan = replace(PLAN, collectives=(Collective.ALL_REDUCE,), dtype="bfloat16")
    (first, *_) = ranks.run(planned, plan, num_ranks=2)
    assert {times.algorithm for times in first.collectives} == {"dist", "ring"}


def left_behind(group: dist.ProcessGroup, fault: str) -> tuple[str, list[int]]:
    """What is raised when something happens to Open MPI, and which of its processes are left after it, on rank 0."""
    message, started = "", list[int]()
    try:
        with openmpi(group, timeout_s=100.0) as mpi:
            started = below(os.getpid())  # of rank 0: mpirun and its ranks
            dist.barrier(group=group)
            if started and fault in VICTIMS:
                os.kill(started[VICTIMS[fault]], signal.SIGKILL)
            if fault == "error":
                raise CollectiveError("something else")
            if fault:
                mpi.receive()
    except CollectiveError as error:
        message = str(error)
    return message, running(started)


VICTIMS = {"mpirun killed": 0, "rank killed": -1}


def running(pids: list[int], limit_s: float = 30.0) -> list[int]:
    """Those that have not ended in time; one that has may wait for ever for a parent to look, in some containers."""
    end_s = time.monotonic() + limit_s
    while (left := [pid for pid in pids if not has_ended(pid)]) and time.monotonic() < end_s:
        time.sleep(0.05)
    return left


def has_ended(pid: int) -> bool:
    """Whether it is gone, but for its entry."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")


@needs_openmpi
@needs_proc
@pytest.mark.parametrize("fault", ["", "error", *VICTIMS])
def test_no_process_is_left_behind(ranks: RankPool, fault: str) -> None:
    """And the death of one is an error on every rank, which says on rank 0 how it came."""
    (first, left), (second, _) = ranks.run(left_behind, fault, num_ranks=2)
    assert left == []
    if fault in VICTIMS:
        assert first.startswith("Open MPI's rank 0 has ended: mpirun ")
        assert second == "Open MPI's rank 1 has ended: rank 0 says why"
    else:
        assert first == second == ("something else" if fault else "")


@needs_openmpi
@needs_proc
def test_ranks_end_with_a_benchmark_that_is_killed() -> None:
    """Nobody is there to end them: they see that their connection is closed."""
    job = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m", "collectives.benchmark"]
    with subprocess.Popen(
        [sys.executable, *job, "--openmpi", "--cell-time", "100s"], stderr=subprocess.PIPE
    ) as torchrun:
        try:
            end_s = time.monotonic() + START_S
            while len(started := below(torchrun.pid)) < 3 and time.monotonic() < end_s:
                time.sleep(0.1)
            os.kill(started[0], signal.SIGKILL)
            torchrun.communicate(timeout=START_S)
        finally:
            if torchrun.poll() is None:
                kill_all(torchrun.pid)
    assert len(started) >= 3  # the benchmark, mpirun and its rank
    assert running(started) == []
