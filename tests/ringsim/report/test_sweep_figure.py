"""Tests of the pictures of a sweep."""

import math
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, Sweep, run_sweep
from ringsim.report.plots import save_plot
from ringsim.report.plots.sweep_figure import draw_sweep
from tests.ringsim.report.described import describe

NETWORKS = {"one": Network(1e-5, 1e9), "two": Network(1e-3, 1e9)}


def sweep_of(names: list[str], ranks: list[int], sizes: list[int], num_networks: int = 1) -> Sweep:
    """A sweep in which whatever has more than 10,000 transfers is skipped, if it has more than 256 ranks."""
    networks = dict(list(NETWORKS.items())[:num_networks])
    return run_sweep(Collective.ALL_REDUCE, names, ranks, sizes, networks, max_transfers=1e4)


NAMES = ["direct", "two_shot", "binomial_tree", "parameter_server", "naive_ring", "ring"]
SWEEPS = {
    "winners": lambda: sweep_of(["ring", "recursive_doubling"], [4, 8, 64], [1 << 10, 1 << 14, 1 << 24], 2),
    "ties": lambda: sweep_of(["hierarchical", "ring"], [5], [1 << 20]),
    # Of many curves those that are never fastest are grey, but for the ring; few curves keep their colours.
    "many": lambda: sweep_of(NAMES, [8], [8, 1 << 10]),
    "few": lambda: sweep_of(NAMES[2:], [8], [8, 1 << 10]),
    "one size": lambda: sweep_of(["ring", "direct"], [4], [8]),
    "many ranks": lambda: sweep_of(["ring"], [2, 4, 8, 16], [1 << 10]),
    "skipped": lambda: sweep_of(["direct"], [4, 1000], [1 << 10]),
    "no time": lambda: run_sweep(Collective.ALL_REDUCE, ["ring"], [4], [8], {"free": Network(0.0, math.inf)}),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps(name: str, snapshot: SnapshotAssertion) -> None:
    """The map of winners, and a panel with the times of each algorithm by size; of one size there are points alone.

    Ranks that have no panel are named below the pictures; a panel without a curve says why it has none.
    """
    assert describe(draw_sweep(SWEEPS[name]())) == snapshot


def test_the_page_needs_nothing_but_the_saved_sweep(tmp_path: Path) -> None:
    """Drawn from the CSV file it is the same to the last pixel."""
    sweep = sweep_of(["ring", "direct", "halving_doubling", "torus"], [4, 1000], [1 << 10, 1 << 20])
    sweep.to_csv(tmp_path / "sweep.csv")
    save_plot(sweep, tmp_path / "page.png")
    save_plot(Sweep.from_csv(tmp_path / "sweep.csv"), tmp_path / "again.png")
    assert (tmp_path / "page.png").read_bytes() == (tmp_path / "again.png").read_bytes()


def test_no_name_in_the_legend_is_cut(tmp_path: Path) -> None:
    """A user's own algorithm has as long a name as it likes, and takes several lines."""
    own = tmp_path / "neighbours.py"
    own.write_text("from ringsim import ring_all_reduce as exchange_with_all_neighbours\n")
    figure = draw_sweep(sweep_of(["direct", f"{own}:exchange_with_all_neighbours"], [4], [64, 2**24]))
    FigureCanvasAgg(figure).draw()
    legends = [legend for part in figure.subfigs for legend in part.legends]
    assert any("exchange_with_all_" in text.get_text() for legend in legends for text in legend.get_texts())
    assert all(legend.get_window_extent().x1 <= figure.bbox.x1 for legend in legends)
