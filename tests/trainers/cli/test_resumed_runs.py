"""Runs of the command that are interrupted or killed, and started again."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fuzz.launcher import NOWHERE, Launcher
from tests.processes import TIMEOUT_S, below, environment
from tests.ranks import RankPool
from tests.trainers.commands import POINTS, command, launch, result_of, start, wait_for_steps
from tests.trainers.points import config, run
from trainers.checkpoints.step_log import read_log
from trainers.cli.group import resume_command


@pytest.mark.parametrize(
    ("variables", "start_of_command"),
    [
        ({}, "trainers --task 'my task:f'"),
        ({"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "4"}, "torchrun --nproc-per-node 4 -m trainers --task"),
        (
            {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"},
            "torchrun --nnodes 2 --nproc-per-node 4 -m trainers --task",
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "srun trainers --task"),
    ],
)
def test_a_run_is_resumed_as_it_was_started(
    variables: dict[str, str], start_of_command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun, by srun, or here; --resume stands there once."""
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["/bin/trainers"])
    for given in (["--resume"], ["--resume", "auto"], ["--resume=auto"]):
        resume = resume_command(["--task", "my task:f", *given, "--steps", "9"])
        assert resume.startswith(start_of_command)
        assert resume.endswith(" 'my task:f' --steps 9 --resume")


@pytest.mark.slow
def test_a_second_run_in_a_directory_is_refused(tmp_path: Path) -> None:
    """In one line, with exit code 2, naming the process that has it; which goes on."""
    arguments = command(*POINTS, *f"--ranks 2 --epochs 100000 --output {tmp_path}".split())
    with subprocess.Popen(arguments, env=environment(), stdout=subprocess.DEVNULL) as first:
        try:
            wait_for_steps(tmp_path / "log.jsonl", 3)
            second = start(*POINTS, "--ranks", "2", "--resume", "--output", str(tmp_path))
            holders = below(first.pid)
            wait_for_steps(tmp_path / "log.jsonl", 1 + len(read_log(tmp_path / "log.jsonl")))
        finally:
            first.terminate()
    assert (second.returncode, second.stdout) == (2, "")
    said = re.fullmatch(
        r"trainers: --output (.*): process (\d+) on host .* is using it: wait until .*\n", second.stderr
    )
    assert said is not None, second.stderr
    assert said[1] == str(tmp_path)
    assert int(said[2]) in holders


def kill_when_logged(launcher: Launcher, arguments: list[str], log: Path, num_lines: int, delay_s: float) -> None:
    """Start the command, and kill all its processes some time after so many steps."""
    pid = launcher.start(arguments, NOWHERE)
    wait_for_steps(log, num_lines, is_running=lambda: group_lives(pid))
    time.sleep(delay_s)
    with suppress(ProcessLookupError):  # it has come to its end
        os.killpg(pid, signal.SIGKILL)
    assert launcher.wait(TIMEOUT_S) is not None
    deadline = time.monotonic() + TIMEOUT_S
    while group_lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def group_lives(group: int) -> bool:
    """Whether a process of that group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def check_killed(
    ranks: RankPool, launcher: Launcher, tmp_path: Path, strategy: str, moments: list[tuple[int, float]], steps: int
) -> None:
    """Kill a run at each of the moments, start it again each time, and compare with a run that nobody disturbed.

    moments: after how many steps and seconds.
    """
    long = {"save_every": 7, "epochs": 1000, "steps": steps, "strategy": strategy}
    expected = ranks.run(run, config(tmp_path / "whole", **long), num_ranks=2)[0]
    output = tmp_path / "killed"
    arguments = [
        *POINTS, *f"--ranks 2 --epochs 1000 --steps {steps} --save-every 7 --resume".split(),
        "--strategy", strategy, "--output", str(output),
    ]  # fmt: skip
    for num_lines, delay_s in moments:
        kill_when_logged(launcher, arguments, output / "log.jsonl", num_lines, delay_s)
    done = launch(launcher, *arguments)
    assert done.returncode == 0, done.stderr
    losses = [line["loss"] for line in read_log(output / "log.jsonl")]
    assert len(losses) == steps
    assert losses == expected.losses
    assert result_of(output)["last_loss"] == expected.losses[-1]
    assert sorted(path.suffix for path in output.iterdir()) == [".json", ".jsonl", ".pt", ".pt", ".toml"]


def test_a_killed_run_goes_on_bit_for_bit(ranks: RankPool, launcher: Launcher, tmp_path: Path) -> None:
    """All ranks killed at some moment in the middle; the curve is that of an uninterrupted run."""
    check_killed(ranks, launcher, tmp_path, "ring", [(random.randrange(1, 90), random.random() / 50)], steps=120)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_run_that_is_killed_again_and_again(
    ranks: RankPool, launcher: Launcher, tmp_path: Path, strategy: str
) -> None:
    """Before the first step too, and while a checkpoint is written."""
    moments = [(0, 0.3 * random.random()), *((number, random.random() / 20) for number in (1, 50, 90, 170, 250))]
    check_killed(ranks, launcher, tmp_path, strategy, moments, steps=300)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp_backend_ring", "zero3"])
def test_torchrun_starts_it_again(tmp_path: Path, strategy: str) -> None:
    """When a rank is killed: the others end by themselves, all go on from the last checkpoint, to the same end."""
    arguments = [*POINTS, "--epochs", "5", "--save-every", "3", "--resume", "--strategy", strategy, "--output"]
    whole = start(*arguments, str(tmp_path / "whole"), "--ranks", "3")
    assert whole.returncode == 0, whole.stderr
    torchrun = ("--nproc-per-node", "3", "--max-restarts", "2")
    died = start(*arguments, str(tmp_path / "died"), "--dies-at", "11", torchrun=torchrun)
    assert died.returncode == 0, died.stderr
    assert f"resumed from {tmp_path / 'died' / 'checkpoint-9.pt'}: 9 of 20 steps are done" in died.stderr
    assert "rank 0: training step 11, strategy " in died.stderr
    assert "Traceback" not in died.stderr
    first, second = (read_log(tmp_path / name / "log.jsonl") for name in ("whole", "died"))
    assert [line["loss"] for line in first] == [line["loss"] for line in second]
    assert result_of(tmp_path / "whole")["fingerprint"] == result_of(tmp_path / "died")["fingerprint"]
