"""The picture of a measured step, as `scripts/draw_step.py` draws it."""

from pathlib import Path

from ringsim.report.colours import BLACK, WHITE, Palette
from tests.processes import ROOT, TIMEOUT_S
from tests.ranks import run_forked_programs, run_script


def test_both_buckets_of_each_program_are_drawn(tmp_path: Path) -> None:
    """By every rank, Gloo's and the last one of our DDP, which its own thread sums, too."""
    arguments = [str(tmp_path / "step.svg"), "-n", "2"]
    outcomes = run_forked_programs(2, TIMEOUT_S, tmp_path, run_script, ROOT / "scripts" / "draw_step.py", arguments)
    assert [outcome.returncode for outcome in outcomes] == [0, 0], outcomes[0].stderr
    drawn, colours = (tmp_path / "step.svg").read_text(), Palette.of(WHITE, BLACK)
    assert all(f">{name}: " in drawn for name in ("DDP on gloo", "DDP on ring", "collectives.DDP on ring"))
    bars = {name: drawn.count(f"fill: {getattr(colours, name).lower()}") for name in ("blue", "sky", "dark_grey")}
    assert bars == {"blue": 3 * 2 * 2 + 1, "sky": 3 * 2 * 2 + 1, "dark_grey": 3 * 2 + 1}  # and the legend's
