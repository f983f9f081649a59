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
from ringsim.verdict import read_directory
from tests.processes import TIMEOUT_S, left_of, run_python
from tests.ranks import run_forked_programs
from tests.trainers.commands import ranks_by_hand, read_until
from trainers.checkpoints.checkpoint import load_checkpoint
from trainers.cli.group import main
from trainers.comparison.config import ONE_PROCESS
from trainers.comparison.report import format_report

SCRIPT = Path(__file__).parents[3] / "scripts" / "train_ring.py"
SMALL = (
    "--d-model 32 --heads 2 --layers 1 --d-ff 64 --sequence-length 32 --batch-size 4 --steps 20 --learning-rate 0.01"
)
SHORT = Blocks(turns=1, number=2, least_s=1e-3)  # of the probes, which take ten seconds; how good they are is not asked
RESULT_NAMES = ["checkpoint.pt", "memory.png", "report.html", "report.json", "report.png", "run.toml"]


def run_comparison(_: int, arguments: list[str]) -> None:
    """On a rank, with short probes and a short bootstrap."""
    short = (
        mock.patch("trainers.comparison.job.BLOCKS", SHORT),
        mock.patch("ringsim.calibration.from_probes._RESAMPLED", 4),
    )
    with short[0], short[1]:
        main(arguments, prog_name="trainers")


def forked(num_ranks: int, arguments: list[str], folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run the comparison on ranks that have loaded torch already."""
    return run_forked_programs(num_ranks, TIMEOUT_S, folder, run_comparison, arguments)


def test_two_ranks(tmp_path: Path) -> None:
    """It predicts, trains, learns, compares with one process, and leaves report, pictures and checkpoint."""
    profile, folder = tmp_path / "profile.json", tmp_path / "new" / "report"
    some = f"{ONE_PROCESS},none,ring,bucketed_bf16,ddp,zero1,fsdp"
    arguments = ["ring", *SMALL.split(), "--strategies", some, "--output", str(folder), "--profile", str(profile)]
    first, second = forked(2, arguments, tmp_path)
    assert (first.returncode, second.returncode, second.stderr) == (0, 0, ""), first.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted([*RESULT_NAMES, "comparison.json"])
    contents = read_directory(folder)
    assert (list(contents.jobs), list(contents.comparisons)) == (["report.json"], ["comparison.json"])
    report, comparison = (json.loads((folder / name).read_text()) for name in ("report.json", "comparison.json"))
    assert format_report(report, comparison) in first.stdout
    assert StepProfile.from_dict(report["profile"]) == StepProfile.load(profile)
    assert sum(p.elements for p in StepProfile.load(profile).parameters) == report["num_parameters"]
    page = (folder / "report.html").read_text()
    assert all(text in page for text in ("What limits performance?", 'data-name="strategies"', 'data-name="trainings"'))
    names = [ONE_PROCESS, *(result["strategy"] for result in report["strategies"])]
    assert names == [row["run"]["name"] for row in comparison["runs"]] == some.split(",")
    for result in report["strategies"]:
        assert len(result["rank_sync_s"]) == 2
        assert result["parameters_identical"] == (result["strategy"] != "none")
        assert (result["predicted_sync_s"] > 0) or result["strategy"] == "none"
        assert result["final_loss"] < math.log(256) - 1.5
        assert result["memory_bytes"] == result["predicted_memory_bytes"]
        assert len(result["losses"]) == 20
    for row in comparison["runs"]:
        exact = row["run"]["name"] not in ("none", "bucketed_bf16")
        assert row["loss_difference"] < (1e-3 if exact else 0.5)
        has_gradients = row["run"]["name"] not in (ONE_PROCESS, "none", "zero1", "fsdp")
        assert (row["run"]["gradient_difference"] is not None) == has_gradients
        assert 0 <= row["run"]["sync_share"] < 1
    told = [line for line in first.stderr.splitlines() if line.startswith("step ")]
    assert [line.partition(":")[0] for line in told] == [f"step {step}/20" for step in range(2, 21, 2)]
    assert first.stderr.count("\nwrote ") == 8
    checkpoint = load_checkpoint(folder / "checkpoint.pt")
    assert (checkpoint.step, checkpoint.config["strategy"], checkpoint.config["task"]["task"]) == (20, "ring", "lm")


def test_another_task_without_one_process(tmp_path: Path) -> None:
    """As JSON; the optimizer's state, of which each rank has a share, is put together while all ranks are there."""
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "comparison.json").write_text("{}")  # of an earlier run
    task = "--task tests.trainers.points:make_points --batch-size 4"
    options = f"{task} --strategies zero1 --steps 3 --output {tmp_path}/report --json".split()
    first, _ = forked(2, ["compare", *options], tmp_path)
    assert first.returncode == 0, first.stderr
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == RESULT_NAMES
    report = json.loads(first.stdout)
    assert report["strategies"][0]["tokens_per_s"] is None
    checkpoint = load_checkpoint(tmp_path / "report" / "checkpoint.pt")
    assert checkpoint.optimizer_state["state"][0]["exp_avg"].shape == (report["num_parameters"],)


def test_one_rank(tmp_path: Path) -> None:
    """There is nothing to synchronise: predicted as no time, and no error is given."""
    options = ["--strategies", "ring,ddp", "--data", "random", "--steps", "3", "--output", str(tmp_path / "report")]
    [done] = forked(1, ["compare", *SMALL.split(), *options], tmp_path)
    assert done.returncode == 0, done.stderr
    for result in json.loads((tmp_path / "report" / "report.json").read_text())["strategies"]:
        # What is left is packing and unpacking: nothing is sent.
        assert result["predicted_sync_s"] < result["step_s"]
        assert result["error"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--heads 3", "--d-model 128: must be divisible by --heads 3"),
        ("--task mlp --depth 3", "--depth: the task mlp has no such option; it has --learning-rate"),
        ("--strategies ring,rung", "--strategies: 'rung' is not one of none, "),
        ("--strategies ring,ddp,ring", "--strategies: 'ring,ddp,ring' names a strategy twice"),
        ("--strategies one_process", "--strategies: 'one_process': must name a strategy to compare it with"),
        ("--timeout 0", "Invalid value for '--timeout': 0.0 is not in the range 0<x<=86400."),
        ("--batch-size 0", "--batch-size 0: must be at least 1"),
        ("--output /proc/report", "--output /proc/report: cannot be written: "),
        ("--output made", "--output made: cannot be written: checkpoint.pt is a directory there"),
        ("--data /no/such/file", "--data /no/such/file: cannot be read: No such file or directory"),
        ("--data short.txt", "--data short.txt: has 9 tokens (bytes), but to train and to test on it with "),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank finds them before it meets the others; exit code 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made" / "checkpoint.pt").mkdir(parents=True)
    (tmp_path / "short.txt").write_text("too short")
    torchrun = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, str(value))
    done = CliRunner().invoke(main, ["compare", *arguments.split()], prog_name="trainers")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "short.txt"]


def test_the_script_is_the_command(tmp_path: Path) -> None:
    """From any directory; started without torchrun it says how to start it."""
    done = run_python(str(SCRIPT), folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    message = "RANK is not set: start it with torchrun: torchrun --nproc-per-node 4 -m trainers compare"
    assert done.stderr == f"train_ring.py: {message}\n"


def test_a_loss_that_is_no_number_stops_the_job(tmp_path: Path) -> None:
    """With the rank, the step and the strategy in one line, and no report."""
    options = ["--strategies", "ring,ddp", "--output", str(tmp_path / "report")]
    ranks = forked(2, ["compare-strategies", *SMALL.replace("0.01", "1e30").split(), *options], tmp_path)
    assert [rank.returncode for rank in ranks] == [1, 1]
    said = "".join(rank.stderr for rank in ranks)
    assert re.search(r"^trainers: recording step \d+, strategy ", said, re.MULTILINE), said
    assert ": the loss of rank 0 is nan, the loss of rank 1 is nan; try a smaller --learning-rate" in said
    assert said.count("trainers: ") == 1
    assert not (tmp_path / "report" / "report.json").exists()


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still are there."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for the ranks' processes in /proc")
def test_a_rank_that_dies_ends_the_job(tmp_path: Path) -> None:
    """With an error, long before the steps are done; no report is left half-written and no rank behind."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    arguments = [*torchrun, *SMALL.split(), "--steps", "1000000", "--output", str(tmp_path / "report")]
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
    command = [sys.executable, str(SCRIPT), *SMALL.split(), "--steps", "1000000", "--timeout", "3"]
    with ranks_by_hand(command, stderr) as ranks:
        os.close(stderr)
        seen = read_until(terminal, "training") + read_until(terminal, " left")
        assert seen.index("starting 2 ranks") < seen.index("probing") < seen.index("training") < len(seen)
        ranks[1].send_signal(signal.SIGSTOP)
        rest = read_until(terminal)
        assert ranks[0].wait(TIMEOUT_S) == 1
    os.close(terminal)
    assert re.search(r"rank 0: (recording|training) step \d+, (strategy [a-z0-9_]+|one_process): ", rest), rest
