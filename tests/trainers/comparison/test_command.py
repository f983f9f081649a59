"""The strategy comparison itself, small, as a user starts it."""

import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from collectives.probes import Blocks
from ringsim.training_step.profile import StepProfile
from tests.processes import TIMEOUT_S, left_of, run_python
from tests.ranks import run_forked_programs
from tests.trainers.commands import ranks_by_hand, read_until
from trainers.checkpoints.checkpoint import load_checkpoint
from trainers.checkpoints.step_log import read_log
from trainers.cli.compare_strategies import DEFAULT_STRATEGIES, main
from trainers.cli.group import main as trainers
from trainers.strategy_comparison.config import RESULTS
from trainers.strategy_comparison.job_log import describe_job_line
from trainers.strategy_comparison.report import format_report
from trainers.strategy_names import STRATEGY_NAMES

SCRIPT = Path(__file__).parents[3] / "scripts" / "train_ring.py"
SMALL = (
    "--d-model 32 --heads 2 --layers 1 --d-ff 64 --sequence-length 32 --batch-size 4 --steps 20 --learning-rate 0.01"
)
SHORT = Blocks(turns=1, number=2, least_s=1e-3)  # of the probes, which take ten seconds; how good they are is not asked
RESULT_NAMES = ["checkpoint.pt", "log.jsonl", "memory.png", "report.html", "report.json", "report.png", "run.toml"]


def command(*arguments: str, ranks: int | None) -> list[str]:
    """The script's command line, under torchrun if `ranks` is given."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    return [sys.executable, *torchrun, str(SCRIPT), *arguments]


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script on two ranks of torchrun to its end."""
    return run_python(*command(*arguments, ranks=2)[1:])


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still are there."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def run_strategy_comparison(_: int, arguments: list[str]) -> None:
    """On a rank, with short probes and a short bootstrap."""
    short = (
        mock.patch("trainers.strategy_comparison.job.BLOCKS", SHORT),
        mock.patch("ringsim.calibration.from_probes._RESAMPLED", 4),
    )
    with short[0], short[1]:
        (trainers if arguments[0] in ("ring", "compare-strategies") else main)(arguments)


def forked(num_ranks: int, arguments: list[str], folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run the strategy comparison on ranks that have loaded torch already."""
    return run_forked_programs(num_ranks, TIMEOUT_S, folder, run_strategy_comparison, arguments)


def test_two_ranks(tmp_path: Path) -> None:
    """It predicts, trains, learns, compares and leaves report, picture, log and checkpoint; no progress bar here."""
    profile, folder = tmp_path / "profile.json", tmp_path / "new" / "report"
    arguments = ["ring", *SMALL.split(), "--output", str(folder), "--profile", str(profile)]
    first, second = forked(2, arguments, tmp_path)
    assert (first.returncode, second.returncode, second.stderr) == (0, 0, ""), first.stderr
    printed, errors = first.stdout, first.stderr
    assert sorted(path.name for path in folder.iterdir()) == RESULT_NAMES
    report = json.loads((folder / "report.json").read_text())
    assert StepProfile.from_dict(report["profile"]) == StepProfile.load(profile)
    page = (folder / "report.html").read_text()
    assert "What limits performance?" in page
    assert 'data-name="strategies"' in page
    assert sum(p.elements for p in StepProfile.load(profile).parameters) == report["num_parameters"]
    assert [result["strategy"] for result in report["strategies"]] == DEFAULT_STRATEGIES.split(",")
    for result in report["strategies"]:
        assert len(result["rank_sync_s"]) == 2
        assert result["measured_sync_p10_s"] <= result["measured_sync_s"] <= result["measured_sync_p90_s"]
        assert result["step_error"] == pytest.approx(result["predicted_step_s"] / result["step_s"] - 1)
        assert result["parameters_identical"] == (result["strategy"] != "none")
        if result["strategy"] != "none":
            assert result["predicted_sync_s"] > 0
            assert result["error"] == pytest.approx(result["predicted_sync_s"] / result["measured_sync_s"] - 1)
        assert result["final_loss"] < math.log(256) - 1.5
        assert len(result["losses"]) == 20
    assert report["max_loss_difference"] < 1e-3
    assert format_report(report) in printed
    said = " ".join(printed.split())
    assert "with every strategy except `none` all ranks hold bit-identical parameters" in said
    assert "2 ranks, batch 4 per rank, 8 in all, " in said
    told = [describe_job_line(line, 20) for line in read_log(folder / "log.jsonl")]
    assert [line.partition(":")[0] for line in told] == ["step 10/20", "step 20/20"]
    assert [line for line in errors.splitlines() if line.startswith(("step ", "wrote "))] == [
        *told,
        *(f"wrote {folder / name}" for name in ("log.jsonl", "run.toml", *RESULTS)),
        f"wrote {profile}",
    ]
    assert "training" not in errors
    checkpoint = load_checkpoint(folder / "checkpoint.pt")
    assert (checkpoint.step, checkpoint.config["strategy"]) == (20, "ring")


@pytest.mark.slow
def test_zero1_alone_leaves_a_checkpoint(tmp_path: Path) -> None:
    """The optimizer's state, of which each rank has a share, is put together while all ranks are there."""
    done = start(*SMALL.split(), "--strategies", "zero1", "--steps", "3", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    checkpoint = load_checkpoint(tmp_path / "checkpoint.pt")
    num_parameters = sum(value.numel() for value in checkpoint.model_state.values())
    assert checkpoint.optimizer_state["state"][0]["exp_avg"].shape == (num_parameters,)
    assert sorted(path.name for path in tmp_path.iterdir()) == RESULT_NAMES


def test_one_rank(tmp_path: Path) -> None:
    """There is nothing to synchronise: predicted as no time, and no error is given."""
    output = tmp_path / "report"
    options = ["--strategies", "ring,ddp", "--data", "random", "--steps", "3", "--output", str(output)]
    [done] = forked(1, ["ring", *SMALL.split(), *options], tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in output.iterdir()) == RESULT_NAMES
    for result in json.loads((output / "report.json").read_text())["strategies"]:
        # What is left is packing and unpacking: nothing is sent.
        assert result["predicted_sync_s"] < result["step_s"]
        assert result["error"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "RANK is not set: start it with torchrun: torchrun --nproc-per-node 4 -m trainers compare-strategies"),
        ("--heads 3", "--d-model 128: must be divisible by --heads 3"),
        ("--log-every 0 --tensorboard", "--tensorboard: with --log-every 0 there is nothing to write"),
        (
            "--strategies ring,rung",
            f"Invalid value for '--strategies': 'rung' is not one of {', '.join(STRATEGY_NAMES)}; did you mean ring?",
        ),
        ("--timeout 0", "Invalid value for '--timeout': 0.0: must be greater than 0 and at most 86400"),
    ],
)
def test_mistakes_are_found_without_torchrun(arguments: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, exit code 2."""
    monkeypatch.delenv("RANK", raising=False)
    done = CliRunner().invoke(main, arguments.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"train_ring.py: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [([str(SCRIPT)], "train_ring.py"), (["-m", "trainers", "compare-strategies"], "trainers compare-strategies")],
)
def test_the_script_is_a_command_of_the_package(tmp_path: Path, arguments: list[str], name: str) -> None:
    """From any directory, as where a wheel is installed, which has no scripts; started without torchrun."""
    done = run_python(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    message = "RANK is not set: start it with torchrun: torchrun --nproc-per-node 4 -m trainers compare-strategies"
    assert done.stderr == f"{name}: {message}\n"


def test_a_mistake_under_torchrun_is_told_once(tmp_path: Path) -> None:
    """By one rank, before torchrun's own account of the failure; nothing is written."""
    done = start("--data", "/no/such/file", "--output", str(tmp_path))
    assert done.returncode != 0
    assert done.stderr.count("train_ring.py: --data /no/such/file: cannot be read: No such file or directory") == 1
    assert 'Traceback (most recent call last):\n  File "' + str(SCRIPT) not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--output /proc/report", "--output /proc/report: cannot be written: "),
        ("--output made", "--output made: cannot be written: checkpoint.pt is a directory there\n"),
        (
            "--data short.txt",
            "--data short.txt: has 9 tokens (bytes), but to train and to test on it with --sequence-length 64 needs at "
            "least 129",
        ),
    ],
)
def test_mistakes_are_known_before_training(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank finds them before it meets the others; nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made" / "checkpoint.pt").mkdir(parents=True)
    (tmp_path / "short.txt").write_text("too short")
    torchrun = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, str(value))
    done = CliRunner().invoke(main, arguments.split())
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"train_ring.py: {message}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "short.txt"]


@pytest.mark.parametrize(
    ("command", "program"), [([], "train_ring.py"), (["ring"], "trainers"), (["compare-strategies"], "trainers")]
)
def test_a_loss_that_is_no_number_stops_the_job(tmp_path: Path, command: list[str], program: str) -> None:
    """With the rank, the step and the strategy in one line, and no report."""
    options = ["--strategies", "ring,ddp", "--learning-rate", "1e30", "--output", str(tmp_path / "report")]
    ranks = forked(2, [*command, *SMALL.split(), *options], tmp_path)
    assert [rank.returncode for rank in ranks] == [1, 1]
    said = "".join(rank.stderr for rank in ranks)
    assert re.search(rf"^{program}: recording step \d+, strategy ", said, re.MULTILINE), said
    assert ": the loss of rank 0 is nan, the loss of rank 1 is nan; try a smaller --learning-rate" in said
    assert said.count(f"{program}: ") == 1
    assert not (tmp_path / "report" / "report.json").exists()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for the ranks' processes in /proc")
def test_a_rank_that_dies_ends_the_job(tmp_path: Path) -> None:
    """With an error, long before the steps are done; no report is left half-written and no rank behind."""
    arguments = command(*SMALL.split(), "--steps", "1000000", "--output", str(tmp_path / "report"), ranks=2)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        deadline = time.monotonic() + 60
        while len(workers := children(job.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(workers[1], signal.SIGKILL)
        output, _ = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode != 0
    assert f"(pid: {workers[1]})" in output
    assert left_of(workers) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_rank_that_stalls_is_named_within_the_timeout() -> None:
    """On a terminal a bar shows the progress; when the other rank stops, rank 0 says what it was at, and ends."""
    terminal, stderr = pty.openpty()
    with ranks_by_hand(command(*SMALL.split(), *["--steps", "1000000", "--timeout", "3"], ranks=None), stderr) as ranks:
        os.close(stderr)
        seen = read_until(terminal, "training") + read_until(terminal, " left")
        assert seen.index("starting 2 ranks") < seen.index("probing") < seen.index("training") < len(seen)
        ranks[1].send_signal(signal.SIGSTOP)
        rest = read_until(terminal)
        assert ranks[0].wait(TIMEOUT_S) == 1
    os.close(terminal)
    assert re.search(r"rank 0: (recording|training) step \d+, strategy [a-z0-9_]+: ", rest), rest
