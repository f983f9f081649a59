"""Tests of the pictures of a sweep."""

import math
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ringsim.analysis.sweep import Sweep
from ringsim.analysis.sweep_run import run_sweep
from ringsim.network.network import Network
from ringsim.report.plots.algorithm_styles import styles_of
from ringsim.report.plots.plot import save_plot
from ringsim.report.plots.sweep_figure import (
    draw_sweep,
    draw_sweep_curves,
    draw_winner_map,
    size_edges,
    winning_names,
)
from ringsim.schedule.collective import Collective

NETWORKS = {"one": Network(1e-5, 1e9), "two": Network(1e-3, 1e9)}


def sweep_of(names: list[str], ranks: list[int], sizes: list[int], num_networks: int = 1) -> Sweep:
    """A sweep in which whatever has more than 10,000 transfers is skipped, if it has more than 256 ranks."""
    networks = dict(list(NETWORKS.items())[:num_networks])
    return run_sweep(Collective.ALL_REDUCE, names, ranks, sizes, networks, max_transfers=1e4)


def test_a_cell_has_the_colour_of_its_winner() -> None:
    """Each area is made of the cells that its algorithm wins, at their sizes and ranks; what nobody wins is hatched."""
    sweep = sweep_of(["ring", "recursive_doubling"], [4, 8, 64], [1 << 10, 1 << 14, 1 << 24])
    axes = Figure().subplots()
    legend = draw_winner_map(axes, sweep, "one", styles_of(sweep.algorithms))
    assert [patch.get_label() for patch in legend] == ["ring", "recursive_doubling"]
    edges = size_edges(sweep.sizes_bytes)
    for area in axes.collections[:2]:
        found = {(round((box.y0 + box.y1) / 2), box.x0, box.x1) for box in (p.get_extents() for p in area.get_paths())}
        won = np.argwhere(winning_names(sweep, "one") == area.get_label()).tolist()
        assert found == {(row, edges[column], edges[column + 1]) for row, column in won}
    alone = sweep_of(["direct"], [4, 1000], [8])
    assert winning_names(alone, "one").tolist() == [["direct"], [""]]
    labels = [patch.get_label() for patch in draw_winner_map(axes, alone, "one", styles_of(["direct"]))]
    assert labels == ["direct", "all skipped"]


def test_a_tie_with_the_ring_is_grey() -> None:
    """On 5 ranks a hierarchy is the ring; without the ring in the sweep there is nothing to tie with."""
    sweep = sweep_of(["hierarchical", "ring"], [5], [1 << 20])
    assert winning_names(sweep, "one").tolist() == [["tied"]]
    (patch,) = draw_winner_map(Figure().subplots(), sweep, "one", styles_of(sweep.algorithms))
    assert patch.get_label() == "ring, within 2% of the fastest"
    assert winning_names(sweep_of(["hierarchical", "direct"], [5], [1 << 20]), "one").tolist() == [["hierarchical"]]
    assert winning_names(sweep_of(["ring", "two_shot"], [5], [8]), "one").tolist() == [["two_shot"]]


def test_of_many_curves_those_that_are_never_fastest_are_grey() -> None:
    """The ring keeps its colour; few curves keep theirs."""
    names = ["direct", "two_shot", "binomial_tree", "parameter_server", "naive_ring", "ring"]
    for some, grey in ((names, {"binomial_tree", "parameter_server", "naive_ring", "two_shot"}), (names[2:], set())):
        sweep, axes = sweep_of(some, [8], [8, 1 << 10]), Figure().subplots()
        draw_sweep_curves(axes, sweep, "one", 8, styles_of(sweep.algorithms))
        assert {str(line.get_label()) for line in axes.get_lines() if line.get_linewidth() == 1} == grey
        told = {text.get_text() for part in draw_sweep(sweep).subfigs for key in part.legends for text in key.texts}
        assert (f"{len(grey)} others" in told) == bool(grey)
        assert not grey & told


def test_lines_are_the_times_of_the_cells() -> None:
    """One line an algorithm in each panel."""
    sweep = sweep_of(["ring", "direct"], [4], [1 << 10, 1 << 20])
    panel = draw_sweep(sweep).axes[1]
    drawn = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in panel.get_lines()}
    for name in ("ring", "direct"):
        assert drawn[name] == [[cell.size_bytes, cell.time_s] for cell in sweep.cells if cell.algorithm == name]


def texts_of(figure: Figure) -> list[str]:
    """Return the texts outside the axes and in them, without line breaks."""
    texts = [text for part in figure.subfigs for text in part.texts]
    return [text.get_text().replace("\n", " ") for text in (*texts, *(t for axes in figure.axes for t in axes.texts))]


def test_what_has_no_curve_is_named_with_its_reason() -> None:
    """Ranks that have no panel, below the pictures; in a panel without a curve, why it has none."""
    said = " ".join(texts_of(draw_sweep(sweep_of(["ring"], [2, 4, 8, 16], [1 << 10]))))
    assert "time against size is drawn for 2, 8 and 16 ranks; for the others the map shows the fastest" in said
    assert "the map shows" not in " ".join(texts_of(draw_sweep(sweep_of(["ring"], [2, 4, 8], [1 << 10]))))
    large = draw_sweep(sweep_of(["direct"], [4, 1000], [1 << 10]))
    assert "skipped: 1e6 transfers, above 10000" in texts_of(large)
    free = Network(0.0, math.inf)
    timeless = draw_sweep(run_sweep(Collective.ALL_REDUCE, ["ring"], [4], [8], {"free": free}))
    assert "no time passes, so there is nothing to draw" in texts_of(timeless)


def test_the_page_needs_nothing_but_the_saved_sweep(tmp_path: Path) -> None:
    """Drawn from the CSV file it is the same to the last pixel."""
    sweep = sweep_of(["ring", "direct", "halving_doubling", "torus"], [4, 1000], [1 << 10, 1 << 20])
    sweep.to_csv(tmp_path / "sweep.csv")
    save_plot(sweep, tmp_path / "page.png")
    save_plot(Sweep.from_csv(tmp_path / "sweep.csv"), tmp_path / "again.png")
    assert (tmp_path / "page.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    with Image.open(tmp_path / "page.png") as picture:
        assert 1900 < picture.width < 2100
        assert np.unique(np.asarray(picture.convert("L"))).size > 50  # not a blank page


def test_no_name_in_the_legend_is_cut(tmp_path: Path) -> None:
    """A user's own algorithm has as long a name as it likes, and takes several lines."""
    own = tmp_path / "neighbours.py"
    own.write_text(
        "from ringsim import ring_all_reduce\ndef exchange_with_all_neighbours(n): return ring_all_reduce(n)\n"
    )
    figure = draw_sweep(sweep_of(["direct", f"{own}:exchange_with_all_neighbours"], [4], [64, 2**24]))
    FigureCanvasAgg(figure).draw()
    legends = [legend for part in figure.subfigs for legend in part.legends]
    assert any("exchange_with_all_" in text.get_text() for legend in legends for text in legend.get_texts())
    assert all(legend.get_window_extent().x1 <= figure.bbox.x1 for legend in legends)


def test_a_sweep_of_one_size_has_points_where_lines_would_be() -> None:
    """A line through one point cannot be seen."""
    axes = Figure().subplots()
    draw_sweep_curves(axes, sweep_of(["ring", "direct"], [4], [8]), "one", 4, styles_of(["ring", "direct"]))
    assert [line.get_marker() for line in axes.lines] == ["o", "o"]
