"""Ranks without torchrun: they meet, fail together with one word said, and none is left."""

import ipaddress
import json
import multiprocessing
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import kill_all
from tests.trainers.launches import SPAWNED, add_up, all_fail, living, processes_of, start_program, wait_for_it
from tests.trainers.listening import listening
from trainers.launch.environment import DistributedEnvironment
from trainers.launch.spawn import FAILURE, _verdict, spawn


@pytest.fixture(autouse=True)
def _not_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever started the tests; and on leaving no process is left."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_ranks_meet_as_under_torchrun(tmp_path: Path) -> None:
    """Each knows where it is, has one thread, and all of them add up; nothing of it stays in our environment."""
    before = dict(os.environ)
    assert spawn(2, add_up, (str(tmp_path),)) == 0
    assert dict(os.environ) == before
    for rank in range(2):
        where = str(DistributedEnvironment(rank, num_ranks=2, local_rank=rank, ranks_per_node=2, node=0))
        assert (tmp_path / f"rank{rank}").read_text() == f"{where} 11 1 1"


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("ours", 1, "rank 1: rank 1: nobody came\n"),
        pytest.param("exit", 5, "", marks=pytest.mark.slow),  # the rank itself has said why
        pytest.param(
            "killed", 1, "rank 1 was ended by SIGKILL; the system may have run out of memory\n", marks=pytest.mark.slow
        ),
    ],
)
def test_when_a_rank_fails_the_others_are_ended(
    how: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though they wait for it; the first that failed is the one of whom is spoken."""
    assert spawn(2, wait_for_it, (str(tmp_path), 1, how)) == code
    assert capsys.readouterr().err == said
    assert living(processes_of(tmp_path, 2)) == []


def test_a_mistake_of_the_user_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """All ranks make it; it is raised here for the command line to say, and nobody else says anything."""
    before = multiprocessing.active_children()
    with pytest.raises(ValueError, match=r"^--data 7: no such thing$"):
        spawn(2, all_fail, ("mistake",))
    assert capfd.readouterr() == ("", "")
    assert set(multiprocessing.active_children()) <= set(before)


@pytest.mark.parametrize(
    ("failures", "told", "code", "said"),
    [
        ({}, None, 0, ""),
        ({1: 3}, None, 3, ""),  # it left by os._exit
        ({1: 3}, {"rank": 0, "code": 4, "text": ""}, 4, ""),  # rank 1 failed because rank 0 had gone
        ({1: 1}, {"rank": 0, "code": 1, "text": "nobody came"}, 1, "rank 0: nobody came\n"),
        ({0: 1, 2: -11}, {"rank": 0, "code": 1, "text": "2 has gone"}, 1, "rank 2 was ended by SIGSEGV\n"),
    ],
)
def test_the_first_cause_is_what_is_said(
    failures: dict[int, int], told: object, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank that a signal ended could not say why; else the rank that was the first to tell."""
    import torch.distributed as dist

    store = dist.HashStore()
    if told is not None:
        store.set(FAILURE, json.dumps(told))
    assert _verdict(failures, store) == code
    assert capsys.readouterr().err == said


@pytest.mark.slow
def test_a_bug_is_shown_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Of one rank."""
    assert spawn(1, all_fail, ("bug",)) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("rank 0: Traceback (most recent call last):\n")
    assert errors.endswith("ZeroDivisionError: by 7\n")
    assert errors.count("Traceback") == 1


@contextmanager
def start(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Two ranks that wait, with a parent of their own, in a session of its own as in a terminal; ended in any case."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_program(folder, SPAWNED, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_all(process.pid)


@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow)]
)
def test_a_signal_ends_all_ranks(number: signal.Signals, whole_group: bool, tmp_path: Path) -> None:
    """Ctrl-C, which a terminal sends to the ranks too, and SIGTERM, which goes to the parent alone; no traceback.

    The store of the parent, and the Gloo of each rank, listen on loopback alone.
    """
    with start(tmp_path) as process:
        ranks = processes_of(tmp_path, 2)
        found = listening([process.pid, *ranks])
        assert len(found) >= 3
        assert all(ipaddress.ip_address(address).is_loopback for address, _ in found), found
        if whole_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (128 + number, "", "")
    assert living(ranks) == []


@pytest.mark.slow
def test_when_the_parent_is_killed_the_ranks_end(tmp_path: Path) -> None:
    """Nobody else would end them."""
    with start(tmp_path) as process:
        ranks = processes_of(tmp_path, 2)
        assert living(ranks) == ranks
        process.kill()
        deadline = time.monotonic() + 20
        while living(ranks) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert living(ranks) == []


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
def test_a_signal_at_any_moment_leaves_nothing(after_s: float, tmp_path: Path) -> None:
    """While torch loads, the ranks start, and they meet."""
    with start(tmp_path) as process:
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (128 + signal.SIGINT, -signal.SIGINT)  # the latter before `spawn` had begun
    assert "SpawnProcess" not in errors
    deadline = time.monotonic() + 20
    while left := [path for path in Path("/proc").glob("[0-9]*") if session(path) == process.pid]:
        # Python's own resource tracker ends by itself, when it sees that all others have.
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def session(process: Path) -> int | None:
    """Of a process; those that have ended, but for their parent's asking how, have none."""
    try:
        state, *numbers = (process / "stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return None
    return None if state == "Z" else int(numbers[2])


@pytest.mark.parametrize(
    ("num_ranks", "environment", "message"),
    [
        (0, {}, "0 ranks: there must be at least 1"),
        (4, {"RANK": "0"}, "4 ranks were requested, but torchrun has already started ranks: use only one of the two"),
        (
            4,
            {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"},
            "4 ranks were requested, but srun has already started ranks: use only one of the two",
        ),
    ],
)
def test_what_cannot_be_spawned_is_refused(
    num_ranks: int, environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, before anything is started."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        spawn(num_ranks, all_fail, ("bug",))
