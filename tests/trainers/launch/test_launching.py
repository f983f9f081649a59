"""Launches for real: one process, torchrun, two hosts of a testbed; what is said when ranks do not meet."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netns_testbed.testbed import Testbed, why_not
from tests.processes import kill_all
from tests.refusals import refused
from trainers.launch.environment import MEETING_VARIABLES, RANK_VARIABLES, DistributedEnvironment
from trainers.launch.rendezvous import init_process_group

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "where.py"
TIMEOUT_S = 120
STRANGERS = (*RANK_VARIABLES, *MEETING_VARIABLES, "GROUP_RANK")
FAKE_SRUN = """#!/bin/sh
echo "srun $*; OMP_NUM_THREADS=$OMP_NUM_THREADS SRUN_CPUS_PER_TASK=$SRUN_CPUS_PER_TASK"
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """To its end, as one would start it from a shell that is no rank."""
    ours = {name: value for name, value in os.environ.items() if name not in STRANGERS and "SLURM" not in name}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**ours, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )


def said(output: str) -> list[str]:
    """Without the host's name, which is another everywhere."""
    return sorted(re.sub(r" \([^)]*\)", "", line) for line in output.splitlines())


def test_one_process() -> None:
    """It is a group of its own, and needs no port."""
    done = run(sys.executable, str(EXAMPLE))
    assert said(done.stdout) == ["rank 0 of 1: node 0, local rank 0 of 1, cpu; sum of ranks 0"], done.stderr


@pytest.mark.parametrize("launcher", ["spawn", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_ranks_of_a_host(launcher: str) -> None:
    """The same with torchrun and without."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    done = run(sys.executable, *(torchrun if launcher == "torchrun" else [str(EXAMPLE), "--ranks", "2"]))
    assert said(done.stdout) == [
        f"rank {rank} of 2: node 0, local rank {rank} of 2, cpu; sum of ranks 1" for rank in range(2)
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
    done = run(sys.executable, "-X", "importtime", str(EXAMPLE), LOCAL_RANK="0")
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
    with pytest.raises(ConnectionError) as caught:
        init_process_group(DistributedEnvironment(1, 2, 1, 2, 0), 1)
    beginning = (
        f"rank 1 of 2 on node 0 did not reach the other ranks at 127.0.0.1:{port} (timeout 1 s; docs/slurm.md): "
    )
    assert str(caught.value).startswith(beginning)
    assert "\n" not in str(caught.value)


def test_the_batch_script_starts_what_it_is_given(tmp_path: Path) -> None:
    """A rank for each task, with as many threads as it has cores."""
    (tmp_path / "srun").write_text(FAKE_SRUN)
    (tmp_path / "srun").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    script = str(ROOT / "scripts" / "train.sbatch")
    done = run("bash", script, "-m", "trainers", "--task", "lm", "--data", "a b", PATH=path, SLURM_CPUS_PER_TASK="3")
    assert done.stdout == (
        "srun --kill-on-bad-exit=1 python -m trainers --task lm --data a b; OMP_NUM_THREADS=3 SRUN_CPUS_PER_TASK=3\n"
    )
    done = run("bash", script, PATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "train.sbatch: say what to run: sbatch scripts/train.sbatch -m trainers --task lm\n"


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


def with_stand_ins(folder: Path, srun: str, scontrol: str) -> dict[str, str]:
    """The environment of a job in which these scripts stand for two of Slurm's commands."""
    for name, text in {"srun": srun, "scontrol": scontrol}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("preempted_at", "code", "queued"),
    [("2026-11-23T03:39:30", 143, "requeue 7\n"), ("None", 143, ""), ("2026-11-23T03:39:30", 0, "")],
)
def test_the_batch_script_queues_a_preempted_job_again(
    tmp_path: Path, preempted_at: str, code: int, queued: str
) -> None:
    """Slurm tells only its ranks; a job that failed, or has finished all the same, is not queued."""
    variables = with_stand_ins(tmp_path, f"#!/bin/sh\nexit {code}\n", SCONTROL.format(preempted_at=preempted_at))
    script = ["bash", str(ROOT / "scripts" / "train.sbatch"), "-m", "trainers"]
    job = subprocess.run(script, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (job.returncode, job.stdout) == (code, queued)


@pytest.mark.parametrize(
    ("number", "code", "expected", "queued"),
    [
        (signal.SIGUSR1, 0, 138, "requeue 7\n"),
        (signal.SIGUSR1, 1, 1, "requeue 7\n"),  # as torchrun ends then
        (signal.SIGTERM, 0, 143, ""),
    ],
)
def test_the_batch_script_passes_signals_on(
    tmp_path: Path, number: signal.Signals, code: int, expected: int, queued: str
) -> None:
    """It waits for the ranks then, and has the job queued again if the time is over."""
    variables = with_stand_ins(tmp_path, STOPPING.format(code=code), SCONTROL.format(preempted_at="None"))
    script = ["bash", str(ROOT / "scripts" / "train.sbatch"), "-m", "trainers"]
    with subprocess.Popen(script, env=variables, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "running\n"
            job.send_signal(number)
            said, _ = job.communicate(timeout=60)
        except BaseException:
            kill_all(job.pid)
            raise
    assert (job.returncode, said) == (expected, f"stopping\n{queued}")
