"""The strategy comparison itself, small, as a user starts it."""

import json
import math
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from PIL import Image
from syrupy.assertion import SnapshotAssertion

from collectives.probes import Blocks
from ringsim.report.plots.style import drawing, palette
from ringsim.training_step.profile import StepProfile
from ringsim.verdict import read_directory
from tests.processes import TIMEOUT_S, run_python
from tests.ranks import run_forked_programs
from tests.refusals import refusals_in
from tests.trainers.commands import stalled
from trainers.checkpoints.checkpoint import load_checkpoint
from trainers.cli.group import main
from trainers.comparison import ONE_PROCESS
from trainers.comparison.report import format_report
from trainers.strategies import STRATEGIES

SCRIPT = Path(__file__).parents[3] / "scripts" / "train_ring.py"
SMALL = (
    "--d-model 32 --heads 2 --layers 1 --d-ff 64 --sequence-length 32 --batch-size 4 --steps 20 --learning-rate 0.01"
)
RESULT_NAMES = ["checkpoint.pt", "memory.png", "report.html", "report.json", "report.png", "run.toml"]


def run_comparison(_: int, arguments: list[str]) -> None:
    """On a rank, with short probes, few recorded steps and a short bootstrap."""
    short = {
        "trainers.comparison.job.BLOCKS": Blocks(turns=1, number=1, least_s=1e-4),
        "trainers.comparison.recording.STEPS": 4,
        "collectives.benchmark.call_overhead.TOUCHED_BYTES": 2**12,
        "ringsim.calibration.from_probes._RESAMPLED": 4,
    }
    with ExitStack() as patches:
        for place, value in short.items():
            patches.enter_context(mock.patch(place, value))
        main(arguments, prog_name="trainers")


def forked(num_ranks: int, arguments: list[str], folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run the comparison on ranks that have loaded torch already."""
    return run_forked_programs(num_ranks, TIMEOUT_S, folder, run_comparison, arguments)


COMPARED = ("zero1", "none", "bucketed_bf16", "ddp")


class Job(NamedTuple):
    """A comparison that was run, and its results."""

    ranks: list[subprocess.CompletedProcess[str]]
    folder: Path
    report: dict[str, Any]
    comparison: dict[str, Any]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Four strategies and one process, on two ranks; the directory is new."""
    path = tmp_path_factory.mktemp("job")
    folder = path / "new" / "report"
    options = f"--strategies {','.join((ONE_PROCESS, *COMPARED))} --output {folder} --profile {path}/profile.json"
    ranks = forked(2, ["ring", *SMALL.split(), *options.split(), "--style", "dark"], path)
    assert [rank.returncode for rank in ranks] == [0, 0], ranks[0].stderr
    return Job(ranks, folder, *(json.loads((folder / name).read_text()) for name in ("report.json", "comparison.json")))


def test_a_job_leaves_report_pictures_and_checkpoint(job: Job) -> None:
    """The files hold the printed results; rank 0 alone prints progress, in ten lines."""
    first, second = job.ranks
    assert (second.stdout, second.stderr) == ("", "")
    assert sorted(path.name for path in job.folder.iterdir()) == sorted([*RESULT_NAMES, "comparison.json"])
    contents = read_directory(job.folder)
    assert (list(contents.jobs), list(contents.comparisons)) == (["report.json"], ["comparison.json"])
    assert format_report(contents.jobs["report.json"], contents.comparisons["comparison.json"]) in first.stdout
    profile = StepProfile.load(job.folder.parents[1] / "profile.json")
    assert StepProfile.from_dict(job.report["profile"]) == profile
    assert sum(parameter.elements for parameter in profile.parameters) == job.report["num_parameters"]
    page = (job.folder / "report.html").read_text()
    assert all(text in page for text in ("What limits performance?", 'data-name="strategies"', 'data-name="trainings"'))
    with drawing("dark"), Image.open(job.folder / "report.png") as picture:
        assert picture.convert("RGB").getpixel((1, 1)) == tuple(bytes.fromhex(palette().paper[1:]))
    told = [line.partition(":")[0] for line in first.stderr.splitlines() if line.startswith("step ")]
    assert told == [f"step {step}/20" for step in range(2, 21, 2)]
    assert first.stderr.count("\nwrote ") == 8
    checkpoint = load_checkpoint(job.folder / "checkpoint.pt")
    assert (checkpoint.step, checkpoint.config["strategy"], checkpoint.config["task"]["task"]) == (20, "zero1", "lm")
    # Each rank has a share of it, which are put together while all ranks are there.
    assert checkpoint.optimizer_state["state"][0]["exp_avg"].shape == (job.report["num_parameters"],)


def test_a_job_predicts_and_trains_and_compares(job: Job, snapshot: SnapshotAssertion) -> None:
    """Each strategy has a row; all learn, and those that are exact as one process does."""
    assert job.report["train"] == snapshot
    assert tuple(result["strategy"] for result in job.report["strategies"]) == COMPARED
    for result in job.report["strategies"]:
        assert len(result["rank_sync_s"]) == 2
        assert result["parameters_identical"] == (result["strategy"] != "none")
        assert (result["predicted_sync_s"] > 0) or result["strategy"] == "none"
        assert result["final_loss"] < math.log(256) - 1.5
        assert result["memory_bytes"] == result["predicted_memory_bytes"]
        assert len(result["losses"]) == 20
    assert [row["run"]["name"] for row in job.comparison["runs"]] == [ONE_PROCESS, *COMPARED]
    for row in job.comparison["runs"]:
        name = row["run"]["name"]
        assert row["loss_difference"] < (0.5 if name in ("none", "bucketed_bf16") else 1e-3)
        assert (row["run"]["gradient_difference"] is not None) == (name in ("bucketed_bf16", "ddp"))
        assert 0 <= row["run"]["sync_share"] < 1


def test_one_rank(tmp_path: Path) -> None:
    """There is nothing to synchronise, and no error is given. Any task will do; the result is JSON on stdout."""
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "comparison.json").write_text("{}")  # of an earlier run
    options = f"--task tests.trainers.points:make_points --batch-size 4 --steps 3 --output {tmp_path}/report --json"
    [done] = forked(1, ["compare", "--strategies", "ddp,ring", *options.split()], tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == RESULT_NAMES
    for result in json.loads(done.stdout)["strategies"]:
        # What is left is packing and unpacking: nothing is sent.
        assert result["predicted_sync_s"] < result["step_s"]
        assert (result["error"], result["tokens_per_s"]) == (None, None)
    assert load_checkpoint(tmp_path / "report" / "checkpoint.pt").config["strategy"] == "ring"


def test_mistakes_are_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """Each rank finds them before it meets the others; exit code 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made" / "checkpoint.pt").mkdir(parents=True)
    by_torchrun = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    for name, value in {**by_torchrun, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    told = refusals_in(Path(__file__).with_name("mistakes.txt"), main)
    assert told.replace(", ".join(STRATEGIES), "STRATEGIES") == snapshot
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_the_script_is_the_command(tmp_path: Path) -> None:
    """From any directory; started without torchrun it says how to start it."""
    done = run_python(str(SCRIPT), folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    message = "RANK is not set: start it with torchrun: torchrun --nproc-per-node 4 -m trainers compare"
    assert done.stderr == f"train_ring.py: {message}\n"


@pytest.mark.parametrize(
    ("option", "codes", "said"),
    [
        ("--bad 5", [1, 1], r"trainers: recording step \d+, strategy \S+: the loss of rank . is nan; a smaller --lea"),
        ("--dies-at 30", [1, -signal.SIGKILL], r"rank 0: (recording|training) step \d+, strategy \S+: .*rank 1"),
    ],
)
def test_a_bad_loss_or_a_dead_rank_ends_the_job(tmp_path: Path, option: str, codes: list[int], said: str) -> None:
    """One line says rank, step and strategy, and there is no report."""
    options = f"--task tests.trainers.points:make_points {option} --batch-size 4 --strategies ring --output {tmp_path}"
    ranks = forked(2, ["compare-strategies", *options.split()], tmp_path)
    assert [rank.returncode for rank in ranks] == codes
    assert len(re.findall(f"^{said}", "".join(rank.stderr for rank in ranks), re.MULTILINE)) == 1, ranks[0].stderr
    assert not (tmp_path / "report.json").exists()


@pytest.mark.slow
def test_a_rank_that_stalls_is_named_within_the_timeout() -> None:
    """On a terminal a bar shows the progress; when the other rank stops, rank 0 says what it was doing, and ends."""
    command = [sys.executable, str(SCRIPT), *SMALL.split(), "--steps", "1000000", "--timeout", "3"]
    seen, rest = stalled(command, "training", " left")
    assert seen.index("starting 2 ranks") < seen.index("probing") < seen.index("training") < len(seen)
    assert re.search(r"rank 0: (recording|training) step \d+, (strategy [a-z0-9_]+|one_process): ", rest), rest
