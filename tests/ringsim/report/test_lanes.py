"""Tests of what is written on and around the lanes."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

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


def test_a_sending_says_chunk_and_receiver() -> None:
    """As c0 -> r2; where there is no room, the chunk alone; where none for that, nothing."""
    figure, axes = lanes_of(view_of(4))
    [labels] = axes.findobj(Labels)
    assert len(labels.texts) == 24
    assert {"c0 → r2", "c3 → r1"} < set(labels.texts)
    [labels] = lanes_of(view_of(16))[1].findobj(Labels)
    assert {"c0", "c15"} < set(labels.texts)
    assert not lanes_of(view_of(40))[1].findobj(Labels)
    assert "each rank has one full-duplex port" in " ".join(texts(figure))


@pytest.mark.parametrize(
    ("collective", "network", "absent"),
    [
        (Collective.ALL_GATHER, NETWORK, ["adds", "reduces", "a failure", "never ends", "slow"]),
        (Collective.REDUCE_SCATTER, NETWORK, ["overwrites", "takes no time"]),
        (Collective.REDUCE_SCATTER, Network(0.0, 1e9), ["waits", "overwrites"]),
        (Collective.REDUCE_SCATTER, Network(1e-5, 1e9), ["overwrites"]),
    ],
)
def test_the_legend_has_what_occurs_alone(collective: Collective, network: Network, absent: list[str]) -> None:
    """Not everything that could."""
    entries = legend_of(lanes_of(view_of(4, network=network, collective=collective))[1])
    assert not [entry for entry in entries for word in absent if word in entry]
    assert "chunk 0, followed" in entries
    assert ("reduces (takes no time)" in entries) == (collective is Collective.REDUCE_SCATTER and network != NETWORK)


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


def test_hosts_are_named() -> None:
    """With their ranks, as are the rows of a torus; also where the ranks of a host lie apart."""
    _, axes = lanes_of(view_of(16, "hierarchical", load_network("dgx-h100-cluster")))
    assert axes.get_yticklabels()[8].get_text() == "rank 8 (host1)"
    _, axes = lanes_of(view_of(6, "torus"))
    assert axes.get_yticklabels()[5].get_text() == "rank 5 (row 1)"
    hosts = '[[hosts]]\nname = "a"\nranks = [0, 2]\n[[hosts]]\nname = "b"\nranks = [1, 3]\n'
    _, axes = lanes_of(view_of(4, network=read_network(hosts + '[host.nic]\nbandwidth = "1GB/s"\n', "test.toml")))
    assert [label.get_text()[-3:] for label in axes.get_yticklabels()] == ["(a)", "(b)", "(a)", "(b)"]


def test_what_is_slow_is_marked() -> None:
    """The lane of a slow rank, and every sending over a slow link; the line below the title has the numbers."""
    slow = '[[slow_rank]]\nrank = 2\nslowdown = 3\n[[slow_link]]\nlink = "host1.nic0.out"\nslowdown = 4\n'
    figure, axes = lanes_of(view_of(4, network=read_network(f"{NIC}{slow}", "test.toml")))
    labels = axes.get_yticklabels()
    assert [label.get_text() for label in labels] == ["rank 0", "rank 1", "rank 2, slow", "rank 3"]
    assert [label.get_color() == palette().vermillion for label in labels] == [False, False, True, False]
    [marks] = [artist for artist in axes.collections if artist.get_label() == "over a slow link"]
    assert len(marks.get_paths()) == 6  # all that rank 1 sends
    [note] = [text for text in texts(figure) if text.startswith("Chunks take up to")]
    assert note.endswith("from rank 1 to rank 2; rank 2 takes 3 times as long to compute as the others.")


def test_what_hangs_is_drawn() -> None:
    """Transfers that never end are drawn within the page, and beside each lane stands what its rank waits for."""
    failing = read_network(f'{NIC}[[failure]]\nlink = "host0.nic0.out"\nat = "300us"\n', "test.toml")
    view = view_of(4, network=failing)
    assert view.stall is not None
    figure, axes = lanes_of(view)
    notes = [text.get_text().strip() for text in axes.texts]
    assert sum("waits for rank" in note for note in notes) == 3
    [sends] = [note for note in notes if note.startswith("sends to rank 1 without end: chunk")]
    assert sends.endswith("(host0.nic0.out failed)")
    assert "never ends" in legend_of(axes)
    [box] = [artist for artist in axes.collections if artist.get_label() == "never ends"]
    extents = np.array([path.get_extents().get_points() for path in box.get_paths()])
    assert np.isfinite(extents).all()
    FigureCanvasAgg(figure).draw()
    assert all(text.get_window_extent().x1 < figure.bbox.x1 for text in axes.texts)
    assert extents[..., 0].max() < axes.get_xlim()[1]
    shown = " ".join(texts(figure))
    assert "After 300 us nothing gets from rank 0 to rank 1." in shown
    assert "of the transfers before the run stopped" in shown
    assert "with 256 KiB it never finishes" in shown


def test_a_run_that_never_begins_is_drawn(tmp_path: Path) -> None:
    """Where everything has failed from the start."""
    failing = read_network(f"{NIC}[[failure]]\nrank = 0\n[[failure]]\nrank = 1\n", "test.toml")
    figure = draw_run_page(view_of(2, network=failing))
    figure.savefig(tmp_path / "page.png")
    assert "the run never finishes at any size" in texts(figure)


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
    tree = build(Collective.ALL_REDUCE, "nccl_tree", 4, 2**26)
    figure, axes = lanes_of(RunView(tree, Network(1e-5, 1.25e9), 2**26))
    FigureCanvasAgg(figure).draw()
    legend = axes.get_legend()
    assert legend is not None
    brackets = [text for text in axes.texts if text.get_text().strip() in ("all-gather", "reduce-scatter")]
    assert len(brackets) == 2
    for text in brackets:
        assert text.get_window_extent().y1 <= legend.get_window_extent().y0
        assert text.get_window_extent().x0 >= 0
