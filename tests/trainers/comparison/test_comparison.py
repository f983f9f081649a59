"""One process compared with several: figures, the command, and the pictures."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from click.testing import CliRunner
from matplotlib.axes import Axes
from PIL import Image

from ringsim.report.plots.style import drawing, palette
from tests.ranks import RankPool, run_forked_ranks
from tests.ringsim.made_probes import made_measurements
from tests.ringsim.verdict.made_jobs import made_job, made_strategy
from trainers.cli.compare_strategies import DEFAULT_STRATEGIES
from trainers.cli.group import main
from trainers.comparison import gradient_check
from trainers.comparison.gradient_check import largest_difference
from trainers.comparison.plot import draw_comparison, save_comparison_plot
from trainers.comparison.runs import TrainingRun, compare, format_comparison, run_of_log
from trainers.strategy_comparison.report_plot import draw_memory, draw_report, save_report_plot
from trainers.tasks import load_task

TIMEOUT_S = 240


def lines(losses: list[float], samples_per_s: float) -> list[dict[str, float]]:
    """Of a log."""
    return [{"loss": loss, "samples_per_s": samples_per_s, "sync_share": 0.25} for loss in losses]


def test_figures_of_a_comparison() -> None:
    """Twice as fast on four ranks is half of what they could do; the first, slow step does not count."""
    one = run_of_log("one process", 1, [*lines([9.0], 1.0), *lines([3.0, 2.0] * 5, 10.0)], 20, None)
    four = run_of_log("ring", 4, lines([9.0, 3.0, 2.5, *[3.0, 2.0] * 4], 20.0), 20, 1e-7)
    alone, together = compare([one, four])
    assert (alone.speed_up, alone.efficiency, alone.loss_difference) == (1.0, 1.0, 0.0)
    assert (together.speed_up, together.efficiency, together.loss_difference) == (2.0, 0.5, 0.5)
    assert format_comparison([alone, together]).splitlines()[2].split() == [
        "ring", "4", "1000.0", "2.00", "50%", "25%", "5.0e-01", "1.0e-07",
    ]  # fmt: skip


def gradient_difference(group: dist.ProcessGroup, strategy: str) -> float:
    """In the mlp's first step."""
    return largest_difference(load_task("mlp", 0), strategy, 0, 62, group)


@pytest.mark.parametrize("strategy", ["allreduce", "ring", "bucketed", "ddp"])
def test_gradients_are_those_of_the_whole_batch(ranks: RankPool, strategy: str) -> None:
    """On three ranks, with shares of 21, 21 and 20 samples, to rounding."""
    assert max(ranks.run(gradient_difference, strategy, num_ranks=3)) < 1e-5


def test_without_synchronisation_they_are_not(ranks: RankPool) -> None:
    """The check can fail."""
    assert min(ranks.run(gradient_difference, "none", num_ranks=2)) > 0.1


def run_module(_: int, module: str, arguments: list[str]) -> None:
    """Run one of these modules as `python -m` does."""
    {"trainers": main, "trainers.comparison.gradient_check": gradient_check.main}[module](arguments)


def fork_local_ranks(num_ranks: int, arguments: Sequence[str], **_: object) -> None:
    """As `run_local_ranks`, but for torchrun: it and each of its ranks take seconds to load torch."""
    option, module, *others = arguments
    assert option == "-m"
    assert run_forked_ranks(num_ranks, TIMEOUT_S, run_module, module, others) == [0] * num_ranks


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains alone and together, prints a table, and leaves figures and a picture.

    (With torchrun a page of the manual starts it, among what takes long.)
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the command would leave set
    monkeypatch.setattr("trainers.cli.compare.run_local_ranks", fork_local_ranks)
    arguments = ["compare", "--task", "mlp", "--strategy", "ring", "--ranks", "2", "--steps", "20", "-o", str(tmp_path)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[1:3]] == ["one process", "ring"]
    alone, ring = json.loads((tmp_path / "comparison.json").read_text())["runs"]
    assert len(alone["run"]["losses"]) == 20
    assert "\nmlp, batch 32 per rank, 64 in all, " in done.stdout
    assert ring["loss_difference"] < 1e-5
    assert ring["run"]["gradient_difference"] < 1e-5
    assert (tmp_path / "comparison.png").stat().st_size > 10000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["comparison.json", "comparison.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--strategy rung", "'rung' is not one of none, allreduce"),
        ("--strategy ring,rung", "Invalid value for '--strategy': 'rung' is not one of none, allreduce"),
        (
            "--strategy ring,ddp --strategy ring",
            "Invalid value for '--strategy': 'ring,ddp,ring' names a strategy twice",
        ),
        ("--batch-size 0", "--batch-size 0: must be at least 1"),
        ("--ranks 65", "a batch of 64 samples in all: must be at least 65, one for each rank; give --batch-size"),
        ("--output /proc/x", "--output /proc/x: cannot be written: "),
        ("--depth 3", "--depth: the task mlp has no such option; it has --learning-rate"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: str, message: str) -> None:
    """Before anything is trained; exit code 2."""
    done = CliRunner().invoke(main, ["compare", *arguments.split()], prog_name="trainers")
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


LOSSES = tuple(3.0 - 0.01 * step for step in range(50))
ROWS = compare([TrainingRun(name, 2, LOSSES, 0.01, 0.3) for name in ("one process", "ring", "ddp", "zero1", "flat")])


def looks(axes: Axes) -> set[tuple[Any, ...]]:
    """Return the looks that tell the curves of a panel apart."""
    return {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.get_lines()}


def report() -> dict[str, Any]:
    """Return the content of report.json for all strategies, as far as it is drawn."""
    results = [{**made_strategy(name, 2, 1e-3, 1e-2), "losses": LOSSES} for name in DEFAULT_STRATEGIES.split(",")]
    measurements = made_measurements(2)
    where = {"machine": "a $ machine_1", "cores": 2, "torch": "2"}
    measurements = replace(measurements, provenance={**measurements.provenance, **where})
    return {**made_job(measurements, results), "model": {"vocabulary": 256}}


def test_equal_losses_are_one_line_with_all_names() -> None:
    """Of runs as of strategies; one that differs has its own line."""
    left, right = draw_comparison(ROWS, "title").axes
    [line] = left.get_lines()
    assert str(line.get_label()).replace("\n", " ") == (
        "one process, 2 ranks ≈ ring, 2 ranks ≈ ddp, 2 ranks ≈ zero1, 2 ranks ≈ flat, 2 ranks"
    )
    assert [bar.get_facecolor() for bar in right.patches]
    content = report()
    content["strategies"][0]["losses"] = [2 * loss for loss in LOSSES]
    curves = [line for line in draw_report(content).axes[1].get_lines() if len(line.get_xdata()) == len(LOSSES)]
    names = [str(curve.get_label()).replace("\n", " ").split(" ≈ ") for curve in curves]
    assert [name for line in names for name in line] == DEFAULT_STRATEGIES.split(",")
    assert [len(line) for line in names] == [1, 10]
    assert len(looks(draw_report(content).axes[1])) == 3  # with the line of a guess


def test_memory_is_stacked_by_kind() -> None:
    """A row per strategy, whose bar ends at the sum; a dot for its step."""
    content = report()
    kinds = ("parameters", "gradients", "optimizer", "vectors")
    for place, result in enumerate(content["strategies"], 1):
        held = {kind: factor * place * 2**20 for factor, kind in enumerate(kinds, 1)}
        result["memory_bytes"] = {**held, "activations": 2**30}
    left, right = draw_memory(content).axes
    ends = [max(bar.get_x() + bar.get_width() for bar in bars) for bars in zip(*left.containers, strict=True)]
    assert ends == [10.0 * place for place in range(1, 12)]
    (steps,) = [line for line in right.get_lines() if len(line.get_xdata()) == 11]
    assert list(steps.get_xdata()) == [result["step_s"] for result in content["strategies"]]


def test_the_style_is_chosen(tmp_path: Path) -> None:
    """Dark, for one; a name with a dollar is no formula."""
    save_comparison_plot(ROWS, "a $x^ title", tmp_path / "comparison.png", "dark")
    save_report_plot(report(), tmp_path / "report.png", "dark")
    with drawing("dark"):
        paper = palette().paper
    for name in ("comparison.png", "report.png"):
        with Image.open(tmp_path / name) as picture:
            pixel = picture.convert("RGB").getpixel((1, 1))
            assert pixel == tuple(bytes.fromhex(paper[1:]))
