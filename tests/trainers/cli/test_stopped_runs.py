"""Runs that a signal stops, or that torchrun starts again, go on bit for bit; tests/fuzz/training.py kills runs."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from syrupy.assertion import SnapshotAssertion

from tests.fuzz.launcher import Launcher
from tests.processes import TIMEOUT_S, environment, kill_all
from tests.trainers.commands import POINTS, command, launch, ranks_below, result_of, start, wait_for_steps
from trainers.checkpoints.output import CheckpointFolder, read_log
from trainers.cli.group import resume_command
from trainers.cli.train import Launch, _start
from trainers.loop.config import TrainConfig
from trainers.tasks import load_task

ENDLESS = ("--epochs", "100000", "--save-every", "100000")
MORE_STEPS = 30


def stopped(
    launcher: Launcher, arguments: list[str], output: Path, number: int, whom: int | None = None, blocked: bool = False
) -> tuple[int, str]:
    """The exit code and the words of a run that gets a signal in its midst.

    whom: a rank; None: who started them. blocked: whether no checkpoint can be written.
    """
    errors = output.parent / "stderr"
    pid = launcher.start([*arguments, "--output", str(output)], errors)
    try:
        wait_for_steps(output / "log.jsonl", 5)
        for step in range(2001 * blocked):  # in the place of whichever checkpoint it will be
            (output / f"checkpoint-{step}.pt" / "taken").mkdir(parents=True)
        os.kill(pid if whom is None else ranks_below(pid)[whom], number)
        code = launcher.wait(TIMEOUT_S)
        assert code is not None, errors.read_text()
    except BaseException:
        kill_all(pid)
        launcher.wait(TIMEOUT_S)
        raise
    return code, errors.read_text()


def only_step(output: Path) -> int:
    """Return the step of the one checkpoint."""
    (path,) = CheckpointFolder(output).newest_first()
    return CheckpointFolder.step_of(path)


def test_after_a_failure_the_command_that_goes_on_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    """If there is a checkpoint to go on from; not where the same command would be refused again."""
    launch = Launch("mlp", {}, TrainConfig(output=tmp_path), 60.0, False, "trainers --task mlp --resume")
    said, again = [], "checkpoint-100.pt"
    for checkpoint, code in (("log", 1), ("checkpoint-20.pt", 1), (again, 1), (again, click.UsageError.exit_code)):
        (tmp_path / checkpoint).touch()
        monkeypatch.setattr("trainers.cli.train.spawn", lambda *_, code=code, **__: code)
        assert _start(launch, load_task("mlp", 0), 2) == code
        said.append(capfd.readouterr().err.rpartition("\r")[2])
    assert said == snapshot


def check_goes_on(launcher: Launcher, arguments: list[str], tmp_path: Path, step: int) -> None:
    """From its checkpoint the run comes to where one comes that nobody has disturbed."""
    to_the_end = [*arguments, "--steps", str(step + MORE_STEPS), "--output"]
    again = launch(launcher, *to_the_end, str(tmp_path / "run"))
    assert again.returncode == 0, again.stderr
    assert f"checkpoint-{step}.pt: {step} of {step + MORE_STEPS} steps are done" in again.stderr
    whole = launch(launcher, *to_the_end, str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    first, second = (result_of(tmp_path / name) for name in ("run", "whole"))
    assert first["fingerprint"] == second["fingerprint"]
    losses = [[line["loss"] for line in read_log(tmp_path / name / "log.jsonl")] for name in ("run", "whole")]
    assert losses[0] == losses[1]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("number", "whom", "strategy"),
    [
        (signal.SIGUSR1, 1, "zero1"),
        (signal.SIGTERM, 0, "ddp"),
        (signal.SIGTERM, None, "bucketed"),
        (signal.SIGTERM, None, "one process"),
    ],
)
def test_a_signal_stops_all_ranks_with_a_checkpoint(
    launcher: Launcher, tmp_path: Path, number: signal.Signals, whom: int | None, strategy: str
) -> None:
    """Whoever gets it, all stop after the same step, of which nothing is lost; one command begins and goes on."""
    several = ["--ranks", "2", "--strategy", strategy] if strategy != "one process" else []
    arguments = [*POINTS, *several, *ENDLESS, "--resume", "auto"]
    code, errors = stopped(launcher, arguments, tmp_path / "run", number, whom)
    assert code == 128 + number, errors
    step = only_step(tmp_path / "run")
    assert f"trainers: stopped by {number.name} after {step} of " in errors
    assert f", saved in {tmp_path}/run/checkpoint-{step}.pt" in errors
    assert re.search(r"; resume with: .*--resume\n$|trainers: interrupted; resume with: ", errors)
    assert len(read_log(tmp_path / "run" / "log.jsonl")) == step
    if strategy != "bucketed":  # one that goes on for each signal, and for one process
        check_goes_on(launcher, arguments, tmp_path, step)


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_ctrl_c_ends_at_once(launcher: Launcher, tmp_path: Path, ranks: str) -> None:
    """Without a checkpoint; a line says how to go on."""
    output = tmp_path / "my run"
    code, errors = stopped(launcher, [*POINTS, *ENDLESS, "--ranks", ranks], output, signal.SIGINT)
    assert code == 130
    assert re.search(r"(^|\n)trainers: interrupted; resume with: .* '.*/my run' --resume\n$", errors)
    assert CheckpointFolder(output).newest_first() == []


def test_a_checkpoint_that_cannot_be_written_is_no_stop_but_an_error(launcher: Launcher, tmp_path: Path) -> None:
    """On the way out, too."""
    arguments = [*POINTS, "--ranks", "2", *ENDLESS, "--steps", "2000"]
    code, errors = stopped(launcher, arguments, tmp_path / "run", signal.SIGUSR1, blocked=True)
    assert code == 1
    assert "cannot be written" in errors


@pytest.mark.slow
def test_under_torchrun(launcher: Launcher, tmp_path: Path) -> None:
    """It passes on what it handles, and waits for the ranks."""
    number = signal.SIGUSR1
    arguments = [*POINTS, *ENDLESS, "--resume", "auto"]
    torchrun = ("--nproc-per-node", "2", "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")
    started = command(*arguments, "--output", str(tmp_path / "run"), torchrun=torchrun)
    with subprocess.Popen(started, env=environment(), stderr=subprocess.PIPE, text=True) as job:
        processes: list[int] = []
        try:
            wait_for_steps(tmp_path / "run" / "log.jsonl", 5)
            processes = ranks_below(job.pid)
            job.send_signal(number)
            _, errors = job.communicate(timeout=TIMEOUT_S)
        except BaseException:
            for process in (job.pid, *processes):  # the ranks outlive a torchrun that does not handle the signal
                kill_all(process)
            raise
    step = only_step(tmp_path / "run")
    assert job.returncode != 0
    assert f"trainers: stopped by {number.name} after {step} of " in errors
    check_goes_on(launcher, [*arguments, "--ranks", "2"], tmp_path, step)


ON_A_HOST = {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("variables", "program"),
    [
        ({}, "trainers"),
        (ON_A_HOST, "torchrun --nproc-per-node 4 -m trainers"),
        (ON_A_HOST | {"GROUP_WORLD_SIZE": "2"}, "torchrun --nnodes 2 --nproc-per-node 4 -m trainers"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "srun trainers"),
    ],
)
def test_a_run_is_resumed_as_begun(variables: dict[str, str], program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun, by srun, or here; --resume stands there once."""
    monkeypatch.setattr(sys, "argv", ["/bin/trainers"])
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for given in (["--resume"], ["--resume", "auto"], ["--resume=auto"]):
        command = resume_command(["--task", "my task:f", *given, "--steps", "9"])
        assert command == f"{program} --task 'my task:f' --steps 9 --resume"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp_backend_ring", "zero3"])
def test_torchrun_starts_it_again(launcher: Launcher, tmp_path: Path, strategy: str) -> None:
    """When a rank is killed: the others end by themselves, all go on from the last checkpoint, to the same end."""
    arguments = [*POINTS, "--epochs", "5", "--save-every", "3", "--resume", "--strategy", strategy, "--output"]
    whole = launch(launcher, *arguments, str(tmp_path / "whole"), "--ranks", "3")
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
