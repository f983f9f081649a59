"""Launches for real: torchrun, two hosts of a testbed, the batch script, signals; errors of ranks that do not meet."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netns_testbed.testbed import Testbed, why_not
from tests.processes import ROOT, environment, kill_all, run_python
from tests.refusals import refused
from trainers.launch.environment import DistributedEnvironment
from trainers.launch.rendezvous import init_process_group
from trainers.launch.signals import StopRequest

EXAMPLE = ROOT / "examples" / "where.py"
TIMEOUT_S = 120
FAKE_SRUN = """#!/bin/sh
echo "srun $*; OMP_NUM_THREADS=$OMP_NUM_THREADS SRUN_CPUS_PER_TASK=$SRUN_CPUS_PER_TASK"
"""


def said(output: str) -> list[str]:
    """Without the host's name, which is another everywhere."""
    return sorted(re.sub(r" \([^)]*\)", "", line) for line in output.splitlines())


TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2"


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "option", "num_ranks"), [("", "", 1), ("", "--ranks 2", 2), (TORCHRUN, "", 2)])
def test_ranks_of_a_host(launcher: str, option: str, num_ranks: int) -> None:
    """The same with torchrun and without; a single process is a group of its own, and needs no port."""
    done = run_python(*launcher.split(), str(EXAMPLE), *option.split())
    assert said(done.stdout) == [
        f"rank {rank} of {num_ranks}: node 0, local rank {rank} of {num_ranks}, cpu; sum of ranks {num_ranks - 1}"
        for rank in range(num_ranks)
    ], done.stderr


@pytest.mark.slow
def test_two_hosts_of_a_testbed(capfd: pytest.CaptureFixture[str]) -> None:
    """With two ranks each: torchrun --nnodes 2, as on two machines."""
    if reason := why_not():
        pytest.skip(reason)
    with Testbed(2) as bed:
        assert bed.run([str(EXAMPLE)], 2, {"PYTHONPATH": str(ROOT)}).exit_code == 0
    assert said(capfd.readouterr().out) == [
        f"rank {rank} of 4: node {rank // 2}, local rank {rank % 2} of 2, cpu; sum of ranks 6" for rank in range(4)
    ]


def test_a_mistake_is_one_line_and_exit_code_2() -> None:
    """Before torch is loaded, which takes seconds."""
    done = run_python("-X", "importtime", str(EXAMPLE), LOCAL_RANK="0")
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert lines == [
        "where: RANK is not set, but LOCAL_RANK is: start it with torchrun, which sets both, or unset LOCAL_RANK"
    ]
    assert "torch.distributed" not in done.stderr


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, int]]:
    """In the environment of one of two ranks; a socket on the port where they would meet, and the port."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, str(value))
        for name in ("TORCHELASTIC_USE_AGENT_STORE", "GLOO_SOCKET_IFNAME"):
            monkeypatch.setenv(name, "")  # so that what `join` sets is undone
            monkeypatch.delenv(name)
        yield server, port


def test_a_port_in_use_is_named(two_ranks: tuple[socket.socket, int]) -> None:
    """And what to do."""
    _, port = two_ranks
    with refused(
        f"MASTER_PORT={port} is in use on 127.0.0.1: set another, or let torchrun --standalone choose one",
        ConnectionError,
    ):
        init_process_group(DistributedEnvironment(0, 2, 0, 2, 0), 5)


def test_ranks_that_do_not_meet_say_where_they_looked(two_ranks: tuple[socket.socket, int]) -> None:
    """Rank 0 is not there."""
    server, port = two_ranks
    server.close()
    where = f"at 127.0.0.1:{port} (timeout 1 s; docs/slurm.md): "
    with refused(f"rank 1 of 2 on node 0 did not reach the other ranks {where}...", ConnectionError):
        init_process_group(DistributedEnvironment(1, 2, 1, 2, 0), 1)


STOPPING = """#!/usr/bin/env python3
import signal, sys
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, _: (print("stopping", flush=True), sys.exit({code} or 128 + number)))
print("running", flush=True)
while True:
    signal.pause()
"""


SCONTROL = """#!/bin/sh
case $1 in show) echo "   PreemptEligibleTime=2026-11-23T03:39:05 PreemptTime={preempted_at}";; *) echo "$@";; esac
"""


Job = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Starts the batch script in a job in which scripts stand for two of Slurm's commands."""

    def start(*arguments: str, srun: str, preempted_at: object = None, **variables: str) -> subprocess.Popen[str]:
        for name, text in {"srun": srun, "scontrol": SCONTROL.format(preempted_at=preempted_at)}.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        ours = environment() | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", **variables}
        ours.pop("OMP_NUM_THREADS", None)
        command = ["bash", str(ROOT / "scripts" / "train.sbatch"), *arguments]
        return subprocess.Popen(command, env=ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


TRAINERS = ("-m", "trainers", "--task", "lm", "--data", "a b")
STARTED = "srun --kill-on-bad-exit=1 python -m trainers --task lm --data a b; OMP_NUM_THREADS=3 SRUN_CPUS_PER_TASK=3\n"
NOTHING_TO_RUN = "train.sbatch: say what to run: sbatch scripts/train.sbatch -m trainers --task lm\n"
NOON = "2026-11-23T12:00:00"


@pytest.mark.parametrize(
    ("arguments", "srun", "preempted_at", "number", "expected"),
    [
        (TRAINERS, FAKE_SRUN, None, None, (0, STARTED, "")),
        ((), FAKE_SRUN, None, None, (2, "", NOTHING_TO_RUN)),
        (TRAINERS, "#!/bin/sh\nexit 143\n", NOON, None, (143, "requeue 7\n", "")),
        (TRAINERS, "#!/bin/sh\nexit 143\n", None, None, (143, "", "")),
        (TRAINERS, "#!/bin/sh\nexit 0\n", NOON, None, (0, "", "")),
        (TRAINERS, STOPPING.format(code=0), None, signal.SIGUSR1, (138, "stopping\nrequeue 7\n", "")),
        (TRAINERS, STOPPING.format(code=1), None, signal.SIGUSR1, (1, "stopping\nrequeue 7\n", "")),  # as torchrun then
        (TRAINERS, STOPPING.format(code=0), None, signal.SIGTERM, (143, "stopping\n", "")),
    ],
)
def test_the_batch_script_starts_a_job_and_queues_it_again(
    job: Job, arguments: tuple[str, ...], srun: str, preempted_at: str | None, number: int | None, expected: object
) -> None:
    """A rank for each task, with as many threads as it has cores.

    Slurm tells only the ranks of a preemption; a job that failed, or has finished all the same, is not queued again.
    A signal is passed on to the ranks, for which it waits; the job is queued again if that says that the time is over.
    """
    with job(*arguments, srun=srun, preempted_at=preempted_at, SLURM_CPUS_PER_TASK="3") as script:
        try:
            if number is not None:
                assert script.stdout.readline() == "running\n"
                script.send_signal(number)
            output = script.communicate(timeout=TIMEOUT_S)
        except BaseException:
            kill_all(script.pid)
            raise
    assert (script.returncode, *output) == expected


# The main thread is where Python cannot run a handler: in C, as one that waits for a peer is.
ENDED_BY_TORCHRUN = """
import ctypes, os, sys, threading, time
from trainers.launch import signals

failing = threading.Event()
if sys.argv[1] != "works":
    failing.set()
signals.GRACE_S = float(sys.argv[2])
signals.delay_termination(failing.is_set)

def explain():
    time.sleep(0.5)
    print("the first rank to fail was rank 1", flush=True)
    os._exit(1)

print("ready", flush=True)
if sys.argv[1] == "explains":
    sys.stdin.readline()
    threading.Thread(target=explain).start()
pause = ctypes.CDLL(None).usleep
while True:  # a signal ends it
    pause(10**6)
"""


@pytest.mark.parametrize(
    ("state", "grace_s", "expected"),
    [
        ("works", 600.0, (143, "")),
        ("explains", 600.0, (1, "the first rank to fail was rank 1\n")),
        ("hangs", 0.2, (143, "")),
    ],
)
def test_a_failing_rank_says_so_before_it_is_ended(state: str, grace_s: float, expected: tuple[int, str]) -> None:
    """One that does not fail ends at once; one that does when it has said why, or when its time is over."""
    command = [sys.executable, "-c", ENDED_BY_TORCHRUN, state, str(grace_s)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment(), **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "ready\n"
            process.stdin.write("\n")
            process.stdin.flush()
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert (process.returncode, said) == expected


def test_what_is_ignored_stays_so() -> None:
    """A signal that was ignored when the program was started stays ignored."""
    before, stop = signal.signal(signal.SIGUSR1, signal.SIG_IGN), StopRequest()
    try:
        with stop.catching_sigusr1():
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stop.number == 0


def test_the_first_signal_is_noted() -> None:
    """Also one that came while it was blocked, as in a rank that is starting; and SIGTERM where it is heeded."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.raise_signal(signal.SIGUSR1)
    early, stop = StopRequest(), StopRequest()
    with early.catching_sigusr1():
        assert early.number == signal.SIGUSR1
    with stop.catching_sigusr1():
        assert not stop.heeded
        with stop.catching_sigterm():
            assert stop.heeded
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGUSR1)
        assert (stop.number, stop.heeded) == (signal.SIGTERM, False)
    assert {number: signal.getsignal(number) for number in before} == before
