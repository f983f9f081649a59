"""Tests of what is written on and around the lanes."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from syrupy.assertion import SnapshotAssertion

from ringsim.analysis import RunView
from ringsim.network import AnyNetwork, Network, load_network, read_network
from ringsim.registry import build
from ringsim.report.plots.bulk import Labels, strided
from ringsim.report.plots.run_pages import draw_run_page
from ringsim.report.plots.style import palette
from ringsim.schedule import Collective

NETWORK = Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=4e9)
NIC = '[host]\nranks = 1\n[host.nic]\nlatency = "5us"\nbandwidth = "1GB/s"\n'


def view_of(
    num_ranks: int,
    algorithm: str = "ring",
    network: AnyNetwork = NETWORK,
    collective: Collective = Collective.ALL_REDUCE,
) -> RunView:
    """The view of a built-in algorithm at 1 MiB."""
    return RunView(build(collective, algorithm, num_ranks), network, 2**20)


def texts(figure: Figure) -> list[str]:
    """All that is written on the page."""
    bulk = [text for labels in figure.findobj(Labels) for text in labels.texts]
    return [artist.get_text() for artist in figure.findobj(lambda artist: hasattr(artist, "get_text"))] + bulk


def lanes_of(view: RunView) -> tuple[Figure, Axes]:
    """The page, and the lanes on it."""
    figure = draw_run_page(view)
    return figure, figure.axes[0]


def legend_of(axes: Axes) -> list[str]:
    """The entries of a legend."""
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


SLOW = '[[slow_rank]]\nrank = 2\nslowdown = 3\n[[slow_link]]\nlink = "host1.nic0.out"\nslowdown = 4\n'
FAILING = '[[failure]]\nlink = "host0.nic0.out"\nat = "300us"\n'
NEVER = "[[failure]]\nrank = 0\n[[failure]]\nrank = 1\n"
HOSTS = '[[hosts]]\nname = "a"\nranks = [0, 2]\n[[hosts]]\nname = "b"\nranks = [1, 3]\n[host.nic]\nbandwidth = "1GB/s"'
VIEWS = {
    "ring": view_of(4),
    "one rank": view_of(1),
    "chunks alone": view_of(16),
    "no names": view_of(17, "direct"),
    "all_gather": view_of(4, collective=Collective.ALL_GATHER),
    "no time to reduce": view_of(4, network=Network(1e-5, 1e9), collective=Collective.REDUCE_SCATTER),
    "tree": view_of(4, "binomial_tree"),
    "torus": view_of(6, "torus"),
    "hosts": view_of(4, network=read_network(HOSTS, "test.toml")),
    "slow": view_of(4, network=read_network(f"{NIC}{SLOW}", "test.toml")),
    "hangs": view_of(4, network=read_network(f"{NIC}{FAILING}", "test.toml")),
    "never begins": view_of(2, network=read_network(f"{NIC}{NEVER}", "test.toml")),
}


@pytest.mark.parametrize("name", VIEWS)
def test_words(name: str, snapshot: SnapshotAssertion) -> None:
    """All words on a page, each once: a legend has what occurs alone, and what is slow or hangs stands in a sentence.

    A sending says chunk and receiver, as c0 -> r2; where there is no room, the chunk alone; where none for that,
    nothing.
    """
    figure = draw_run_page(VIEWS[name])
    words = dict.fromkeys(" ".join(text.split()) for text in texts(figure) if re.search("[a-z]{2}|→", text))
    assert textwrap.fill(" | ".join(words), 110) == snapshot
    assert bool(figure.axes[0].findobj(Labels)) == (name not in ("one rank", "no names"))


@pytest.mark.parametrize("num_ranks", [16, 17])
def test_chunk_0_is_followed(num_ranks: int) -> None:
    """Whatever the number of ranks: a frame or a filled box for each of its sendings."""
    _, axes = lanes_of(view_of(num_ranks))
    [followed] = [artist for artist in axes.collections if artist.get_label() == "followed"]
    assert len(followed.get_paths()) == 2 * (num_ranks - 1)
    assert bool(followed.get_facecolor().size) == (num_ranks > 16)
    assert to_hex(followed.get_edgecolor()[0]) == palette().ink.lower()


def test_phases_stand_above_the_lanes() -> None:
    """From their first begin to their last end, each on a line."""
    view = view_of(4)
    _, axes = lanes_of(view)
    lines = {line.get_label(): np.asarray(line.get_xdata()) for line in axes.get_lines()}
    half = view.timeline.time_s / 2
    assert set(lines) >= {"reduce-scatter", "all-gather"}
    assert lines["reduce-scatter"][1] <= lines["all-gather"][0]
    assert 0 <= lines["reduce-scatter"][0] < half * 1e3 < lines["reduce-scatter"][1]


def test_what_is_slow_is_marked() -> None:
    """The lane of a slow rank, and every sending over a slow link."""
    _, axes = lanes_of(VIEWS["slow"])
    assert [label.get_color() == palette().vermillion for label in axes.get_yticklabels()] == [
        False,
        False,
        True,
        False,
    ]
    [marks] = [artist for artist in axes.collections if artist.get_label() == "over a slow link"]
    assert len(marks.get_paths()) == 6  # all that rank 1 sends


def test_what_hangs_is_drawn(tmp_path: Path) -> None:
    """Transfers that never end are drawn within the page, also where everything has failed from the start."""
    figure, axes = lanes_of(VIEWS["hangs"])
    [box] = [artist for artist in axes.collections if artist.get_label() == "never ends"]
    extents = np.array([path.get_extents().get_points() for path in box.get_paths()])
    assert np.isfinite(extents).all()
    FigureCanvasAgg(figure).draw()
    assert all(text.get_window_extent().x1 < figure.bbox.x1 for text in axes.texts)
    assert extents[..., 0].max() < axes.get_xlim()[1]
    draw_run_page(VIEWS["never begins"]).savefig(tmp_path / "page.png")


@pytest.mark.parametrize(
    ("num_ranks", "algorithm", "network"),
    [
        (4, "ring", NETWORK),
        (16, "torus", NETWORK),
        (16, "hierarchical", load_network("dgx-h100-cluster")),
        (40, "direct", NETWORK),
    ],
)
def test_no_name_lies_on_another(num_ranks: int, algorithm: str, network: AnyNetwork) -> None:
    """Tick labels and what stands beside them, in all panels; nothing reaches beyond the page."""
    figure = draw_run_page(view_of(num_ranks, algorithm, network))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    page = figure.bbox
    for axes in figure.axes:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            boxes = [label.get_window_extent() for label in labels if label.get_text() and label.get_visible()]
            overlaps = [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a.overlaps(b)]
            assert not overlaps
        for text in (*axes.texts, axes.title, axes._left_title):
            box = text.get_window_extent()
            if text.get_text():
                assert page.x0 <= box.x0 <= box.x1 <= page.x1 + 1, text.get_text()
        legend = axes.get_legend()
        if legend is not None:
            assert not legend.get_window_extent().overlaps(axes._left_title.get_window_extent())
            assert legend.get_window_extent().x1 <= page.x1


def test_every_which_is_named() -> None:
    """As many as have room, in powers of two."""
    assert list(strided(5, needed=8, room=9)) == [0, 1, 2, 3, 4]
    assert list(strided(16, needed=8, room=1.5)) == [0, 8]


def test_the_brackets_of_phases_do_not_lie_on_the_legend() -> None:
    """A tree in segments has three phases, of which each overlaps the next: each has a line."""
    tree = build(Collective.ALL_REDUCE, "nccl_tree", 4, 2**21)
    figure, axes = lanes_of(RunView(tree, Network(1e-5, 1.25e9), 2**21))
    FigureCanvasAgg(figure).draw()
    legend = axes.get_legend()
    assert legend is not None
    brackets = [text for text in axes.texts if text.get_text().strip() in ("all-gather", "reduce-scatter")]
    assert len(brackets) == 2
    for text in brackets:
        assert text.get_window_extent().y1 <= legend.get_window_extent().y0
        assert text.get_window_extent().x0 >= 0
