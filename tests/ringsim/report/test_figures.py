"""Pictures of runs, sweeps, comparisons and losses: all words and shapes, and what must not overlap."""

import math
import re
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, RunView, Sweep, run_sweep
from ringsim.analysis import pack_sends, waiting_times
from ringsim.network import load_network, read_network
from ringsim.report.plots import save_plot
from ringsim.report.plots.charts import Curve, Labels, draw_curves, draw_loss_curves, set_axis, strided
from ringsim.report.plots.comparison_figure import draw_errors, draw_times, format_factor, format_percent
from ringsim.report.plots.lanes import Lanes, draw_lanes
from ringsim.report.plots.run_pages import draw_run_page
from ringsim.report.plots.style import drawing, inline_svg, new_figure
from ringsim.report.plots.sweep_figure import draw_sweep
from ringsim.units import format_time
from tests.ringsim.made_run import made_comparison, made_view
from tests.ringsim.report.described import describe

NETWORK = Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=4e9)
NIC = '[host]\nranks = 1\n[host.nic]\nlatency = "5us"\nbandwidth = "1GB/s"\n'
SLOW = '[[slow_rank]]\nrank = 2\nslowdown = 3\n[[slow_link]]\nlink = "host1.nic0.out"\nslowdown = 4\n'
FAILING = '[[failure]]\nlink = "host0.nic0.out"\nat = "300us"\n'
NEVER = "[[failure]]\nrank = 0\n[[failure]]\nrank = 1\n"
HOSTS = '[[hosts]]\nname = "a"\nranks = [0, 2]\n[[hosts]]\nname = "b"\nranks = [1, 3]\n[host.nic]\nbandwidth = "1GB/s"'


def view_of(num_ranks: int, algorithm: str = "ring", network: Network | str = NETWORK, **more: Any) -> RunView:
    """See `made_view`. network: also the text of a network file."""
    network = read_network(network, "test.toml") if isinstance(network, str) else network
    return made_view(algorithm, num_ranks, network, **more)


VIEWS = {
    "ring": view_of(4),
    "one rank": view_of(1),
    "chunks alone": view_of(16),
    "no names": view_of(17, "direct"),
    "all_gather": view_of(4, collective=Collective.ALL_GATHER),
    "no time to reduce": view_of(4, network=Network.uniform(1e-5, 1e9), collective=Collective.REDUCE_SCATTER),
    "tree": view_of(4, "binomial_tree"),
    "rows": view_of(8, "parameter_server"),
    "torus": view_of(6, "torus"),
    "hosts": view_of(4, network=HOSTS),
    "slow": view_of(4, network=f"{NIC}{SLOW}"),
    "hangs": view_of(4, network=f"{NIC}{FAILING}"),
    "never begins": view_of(2, network=f"{NIC}{NEVER}"),
}


ONE, BOTH = {"one": 1e-5}, {"one": 1e-5, "two": 1e-3}  # networks by their latency


def sweep_of(names: list[str], ranks: list[int], sizes: list[int], latencies_s: dict[str, float] = ONE) -> Sweep:
    """A sweep in which whatever has more than 10,000 transfers is skipped, if it has more than 256 ranks."""
    networks = {name: Network.uniform(latency_s, 1e9) for name, latency_s in latencies_s.items()}
    return run_sweep(Collective.ALL_REDUCE, names, ranks, sizes, networks, max_transfers=1e4)


NAMES = ["direct", "two_shot", "binomial_tree", "parameter_server", "naive_ring", "ring"]
SWEEPS = {
    "winners": lambda: sweep_of(["ring", "recursive_doubling"], [4, 8, 64], [1 << 10, 1 << 14, 1 << 24], BOTH),
    "ties": lambda: sweep_of(["hierarchical", "ring"], [5], [1 << 20]),
    # Of many curves those that are never fastest are grey, but for the ring; few curves keep their colours.
    "many": lambda: sweep_of(NAMES, [8], [8, 1 << 10]),
    "few": lambda: sweep_of(NAMES[2:], [8], [8, 1 << 10]),
    "one size": lambda: sweep_of(["ring", "direct"], [4], [8]),
    "many ranks": lambda: sweep_of(["ring"], [2, 4, 8, 16], [1 << 10]),
    "skipped": lambda: sweep_of(["direct"], [4, 1000], [1 << 10]),
    "no time": lambda: run_sweep(Collective.ALL_REDUCE, ["ring"], [4], [8], {"free": Network.uniform(0.0, math.inf)}),
}


def loss_curves() -> Figure:
    """Of eight strategies, two of which are alike."""
    figure = Figure()
    curves = {f"strategy {number}": [3.0 + number / 9 - step / 30 for step in range(60)] for number in range(7)}
    draw_loss_curves(figure.subplots(), curves | {"like the first": curves["strategy 0"]})
    return figure


LINES: dict[str, Callable[[], Figure]] = {
    "small errors": lambda: draw_errors(made_comparison([0.9, 1.2])),
    "large errors": lambda: draw_errors(made_comparison([0.05, 1.0, 9.0])),
    "many errors": lambda: draw_errors(made_comparison([1.0, 1.1], num_groups=26)),
    "many times": lambda: draw_times(made_comparison([1.0, 1.1], num_groups=26)),
    "used in the calibration": lambda: draw_times(made_comparison([1.0], used=True)),
    "losses": loss_curves,
}


@pytest.mark.parametrize("name", [*VIEWS, *SWEEPS, *LINES])
def test_words_and_shapes(name: str, snapshot: SnapshotAssertion) -> None:
    """All words on a page, each once: a legend has what occurs alone, and what is slow or hangs stands in a sentence.

    Runs: a sending says chunk and receiver, as c0 -> r2; where there is no room, the chunk alone, or nothing. Sweeps: a
    panel without a curve says why. Errors: in percent if small, else factors on a logarithmic axis, on which half and
    twice lie as far from none. Lines differ in colour and stroke together; what cannot is counted, not drawn.
    """
    draw = LINES.get(name) or (lambda: draw_sweep(SWEEPS[name]()) if name in SWEEPS else draw_run_page(VIEWS[name]))
    figure = draw()
    assert describe(figure) == snapshot
    if name in VIEWS:
        assert bool(figure.axes[0].findobj(Labels)) == (name not in ("one rank", "no names"))
    if name in LINES:
        lines = [line for line in figure.axes[0].get_lines() if not str(line.get_label()).startswith("_")][:18]
        styles = {(line.get_color(), str(line.get_linestyle()), str(line.get_marker())) for line in lines}
        assert len(styles) == len(lines)
        ticks = figure.axes[0].get_yticks()
        assert name != "large errors" or (len(ticks) < 16 and np.allclose(np.asarray(ticks) * ticks[::-1], 1))


CROWDED = {
    **{name: VIEWS[name] for name in ("ring", "hangs", "never begins")},
    "torus": view_of(16, "torus"),
    "hosts": view_of(16, "hierarchical", load_network("dgx-h100-cluster")),
    "direct": view_of(40, "direct"),
    # A tree in segments has three phases, of which each overlaps the next: each has a line.
    "tree": view_of(4, "nccl_tree", Network.uniform(1e-5, 1.25e9), size_bytes=2**21),
}


@pytest.mark.parametrize("name", CROWDED)
def test_no_name_lies_on_another(name: str) -> None:
    """Tick labels and what stands beside them, in all panels; nothing reaches beyond the page, or lies on a legend."""
    figure = draw_run_page(CROWDED[name])
    FigureCanvasAgg(figure).draw()
    page = figure.bbox
    for axes in figure.axes:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            boxes = [label.get_window_extent() for label in labels if label.get_text() and label.get_visible()]
            assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]
        written = [text for text in (*axes.texts, axes.title, axes._left_title) if text.get_text()]
        legend = axes.get_legend()
        for text in written:
            box = text.get_window_extent()
            assert page.x0 <= box.x0 <= box.x1 <= page.x1 + 1, text.get_text()
            assert legend is None or not legend.get_window_extent().overlaps(box), text.get_text()
        assert legend is None or legend.get_window_extent().x1 <= page.x1


def test_no_name_in_the_legend_of_a_sweep_is_cut(tmp_path: Path) -> None:
    """A user's own algorithm has as long a name as it likes, and takes several lines."""
    own = tmp_path / "neighbours.py"
    own.write_text("from ringsim import ring_all_reduce as exchange_with_all_neighbours\n")
    figure = draw_sweep(sweep_of(["direct", f"{own}:exchange_with_all_neighbours"], [4], [64, 2**24]))
    FigureCanvasAgg(figure).draw()
    legends = [legend for part in figure.subfigs for legend in part.legends]
    assert any("exchange_with_all_" in text.get_text() for legend in legends for text in legend.get_texts())
    assert all(legend.get_window_extent().x1 <= figure.bbox.x1 for legend in legends)


def drawn_intervals(axes: Axes, label: str) -> list[tuple[int, float, float]]:
    """Rank, begin and end of the bars with this label, in order."""
    [bars] = [collection for collection in axes.collections if collection.get_label() == label]
    boxes = [path.get_extents() for path in bars.get_paths()]
    return sorted((round((box.y0 + box.y1) / 2), box.x0, box.x1) for box in boxes)


def test_lanes_show_the_busy_intervals_of_the_timeline() -> None:
    """Each bar of a lane begins and ends with its transfer: sends on the sender, reductions on the receiver."""
    view, axes = view_of(3, network=Network.uniform(2.0, 1.0, 4.0), size_bytes=24), Figure().subplots()
    draw_lanes(axes, Lanes(view.timeline, view), "heading")
    timeline = view.timeline
    for label, rank, begin, end, rows in (
        ("sends to add", timeline.src, timeline.start_s, timeline.sent_s, timeline.reduce),
        ("sends to overwrite", timeline.src, timeline.start_s, timeline.sent_s, ~timeline.reduce),
        ("reduces", timeline.dst, timeline.apply_s, timeline.applied_s, timeline.reduce),
    ):
        wanted = sorted(zip(rank[rows].tolist(), begin[rows].tolist(), end[rows].tolist(), strict=True))
        assert len(wanted) == 6
        np.testing.assert_allclose(drawn_intervals(axes, label), wanted, err_msg=label)
    gaps = [(rank, *gap) for rank, gaps in enumerate(waiting_times(timeline)) for gap in gaps.tolist()]
    np.testing.assert_allclose(drawn_intervals(axes, "waits"), sorted(gaps))


@pytest.mark.parametrize(
    ("algorithm", "num_ranks", "most"), [("ring", 5, 1), ("parameter_server", 8, 7), ("double_binary_tree", 8, 4)]
)
def test_what_is_sent_at_the_same_time_lies_in_rows(algorithm: str, num_ranks: int, most: int) -> None:
    """In a row of a lane no two sendings overlap, and there are no more rows than are sent at any one time."""
    timeline = view_of(num_ranks, algorithm, Network.uniform(2.0, 1.0, 4.0), size_bytes=8 * num_ranks).timeline
    row, num_rows = pack_sends(timeline)
    assert num_rows.max() == row.max() + 1 == most
    for rank in range(num_ranks):
        mine = timeline.src == rank
        start, left = timeline.start_s[mine], timeline.sent_s[mine]
        at_once = ((start <= start[:, None]) & (left > start[:, None])).sum(axis=1)
        assert row[mine].max() + 1 == at_once.max()
        for number in range(most):
            order = np.argsort(start[row[mine] == number])
            assert (start[row[mine] == number][order][1:] >= left[row[mine] == number][order][:-1]).all()
    if algorithm == "double_binary_tree":  # what is sent to one receiver is easier to follow in one row than in two
        leaf = timeline.src == 1  # sends to 2 and 7 all the time
        assert [set(row[leaf & (timeline.dst == dst)].tolist()) for dst in (2, 7)] == [{0}, {1}]


def test_as_many_items_as_have_room_are_named() -> None:
    """In powers of two."""
    assert list(strided(5, needed=8, room=9)) == [0, 1, 2, 3, 4]
    assert list(strided(16, needed=8, room=1.5)) == [0, 8]


def test_errors_in_words() -> None:
    """Errors are written in percent or as factors."""
    assert [format_percent(ratio) for ratio in (0.9, 1.0, 1.125)] == ["-10%", "right", "+12.5%"]
    assert [format_factor(ratio) for ratio in (0.5, 1.0, 3.0)] == ["2x too short", "right", "3x too long"]


@pytest.mark.parametrize("width", [3.0, 12.0])
@pytest.mark.parametrize("ends_s", [(6e-3, 19e-3), (1.5e-3, 80e-3), (9e-3, 9.5e-3), (2e-5, 0.2), (1e-6, 1e3)])
def test_the_ticks_of_a_logarithmic_axis_have_room(ends_s: tuple[float, float], width: float) -> None:
    """At least two of them, and no label over the next."""
    figure = new_figure(width, 2)
    axes = figure.subplots()
    axes.plot(ends_s, [0, 1])
    set_axis(axes.xaxis, "time", format_time, log_base=10)
    axes.set_xlim(*ends_s)
    FigureCanvasAgg(figure).draw()
    ticks = [tick for tick in axes.xaxis.get_major_ticks() if ends_s[0] <= tick.get_loc() <= ends_s[1]]
    labels = [tick.label1.get_window_extent() for tick in ticks]
    assert len(labels) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(labels))


def test_what_an_axis_cannot_hold_is_left_out() -> None:
    """Infinite times, as where something fails; without anything else there is nothing to draw."""
    axes = Figure().subplots()
    assert draw_curves(axes, [Curve("a", [1, 2, 4], [2.0, float("inf"), 1e300])])
    [line] = axes.get_lines()
    assert np.isfinite(np.asarray(line.get_ydata())).tolist() == [True, False, False]
    assert not draw_curves(axes, [Curve("a", [1], [float("inf")]), Curve("b", [], [])])


def test_a_picture_in_a_page_is_the_same_every_time_and_its_names_are_text() -> None:
    """Its colours are those of the page, light or dark; nothing in it has a name that another picture has, too."""

    def svg() -> str:
        with drawing("page"):
            figure = new_figure(4, 3)
            axes = figure.subplots()
            set_axis(axes.xaxis, "<x> & $y$", str, log_base=2)
            draw_curves(axes, [Curve("<a>", [1, 2], [1, 2])])
            axes.legend()
            return inline_svg(figure)

    text = svg()
    assert text == svg()
    assert text.startswith("<svg")
    assert "&lt;x&gt; &amp; $y$</text>" in text
    assert "stroke: var(--x0072b2, #0072b2)" in text
    assert "figure_1" not in text
    assert not re.search(r"<(metadata|script)|202\d", text)


def test_a_page_is_written(tmp_path: Path) -> None:
    """A PNG is about 2000 pixels wide, of a sweep the same from its CSV file; another suffix is refused."""
    sweep = sweep_of(["ring", "direct", "halving_doubling", "torus"], [4, 1000], [1 << 10, 1 << 20])
    sweep.to_csv(tmp_path / "sweep.csv")
    save_plot(sweep, tmp_path / "page.png")
    save_plot(Sweep.from_csv(tmp_path / "sweep.csv"), tmp_path / "again.png")
    assert (tmp_path / "page.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    with pytest.raises(ValueError, match="xyz"):
        save_plot(sweep, tmp_path / "page.xyz")
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.format == "PNG"
        assert 1900 < picture.width < 2100
        assert np.unique(np.asarray(picture.convert("L"))).size > 50  # not a blank page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.png", "page.png", "sweep.csv"]
