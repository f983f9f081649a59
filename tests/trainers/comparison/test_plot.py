"""Tests of the pictures of `trainers compare` and of the main job; made up, so that all is known."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from PIL import Image

from ringsim.report.plots.style import drawing, palette
from trainers.cli.main_job import DEFAULT_STRATEGIES
from trainers.comparison.plot import draw_comparison, save_comparison_plot
from trainers.comparison.runs import TrainingRun, compare
from trainers.main_job.report_plot import draw_report, save_report_plot

LOSSES = tuple(3.0 - 0.01 * step for step in range(50))
ROWS = compare([TrainingRun(name, 2, LOSSES, 0.01, 0.3) for name in ("one process", "ring", "ddp", "zero1", "flat")])


def looks(axes: Axes) -> set[tuple[Any, ...]]:
    """What tells the curves of a panel apart."""
    return {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.get_lines()}


def report() -> dict[str, Any]:
    """What report.json holds of all strategies, as far as it is drawn."""
    times = {"predicted_sync_s": 1e-3, "measured_sync_s": 2e-3, "measured_sync_p10_s": 1e-3,
             "measured_sync_p90_s": 3e-3, "error": -0.5, "losses": list(LOSSES)}  # fmt: skip
    return {
        "strategies": [{"strategy": name, **times} for name in DEFAULT_STRATEGIES.split(",")],
        "model": {"vocabulary": 256},
        "num_ranks": 4,
        "num_parameters": 1000,
        "measurements": {"provenance": {"machine": "a $ machine_1", "cores": 2, "torch": "2"}},
    }


def test_equal_losses_can_be_told_apart() -> None:
    """Each run and each strategy has a look of its own; the losses of the first lie below, the widest."""
    left, right = draw_comparison(ROWS, "title").axes
    assert len(looks(left)) == len(ROWS)
    widths = [line.get_linewidth() for line in left.get_lines()]
    assert widths[0] == max(widths) > 2 * widths[-1]
    assert [bar.get_facecolor() for bar in right.patches]
    curves = [line for line in draw_report(report()).axes[1].get_lines() if len(line.get_xdata()) == len(LOSSES)]
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in curves}) == 11


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
