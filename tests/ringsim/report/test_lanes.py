"""Tests of what is written on and around the lanes."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, RunView
from ringsim.network import AnyNetwork, load_network, read_network
from ringsim.registry.algorithms import build
from ringsim.report.plots.charts import Labels, strided
from ringsim.report.plots.run_pages import draw_run_page
from tests.ringsim.report.described import describe

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
    "rows": view_of(8, "parameter_server"),
    "torus": view_of(6, "torus"),
    "hosts": view_of(4, network=read_network(HOSTS, "test.toml")),
    "slow": view_of(4, network=read_network(f"{NIC}{SLOW}", "test.toml")),
    "hangs": view_of(4, network=read_network(f"{NIC}{FAILING}", "test.toml")),
    "never begins": view_of(2, network=read_network(f"{NIC}{NEVER}", "test.toml")),
}


@pytest.mark.parametrize("name", VIEWS)
def test_words_and_shapes(name: str, snapshot: SnapshotAssertion) -> None:
    """All words on a page, each once: a legend has what occurs alone, and what is slow or hangs stands in a sentence.

    A sending says chunk and receiver, as c0 -> r2; where there is no room, the chunk alone; where none for that,
    nothing. In the lanes phases follow one another, chunk 0 is framed or filled, and what is slow is marked.
    """
    figure = draw_run_page(VIEWS[name])
    assert describe(figure) == snapshot
    assert bool(figure.axes[0].findobj(Labels)) == (name not in ("one rank", "no names"))


CROWDED = {
    **{name: VIEWS[name] for name in ("ring", "hangs", "never begins")},
    "torus": view_of(16, "torus"),
    "hosts": view_of(16, "hierarchical", load_network("dgx-h100-cluster")),
    "direct": view_of(40, "direct"),
    # A tree in segments has three phases, of which each overlaps the next: each has a line.
    "tree": RunView(build(Collective.ALL_REDUCE, "nccl_tree", 4, 2**21), Network(1e-5, 1.25e9), 2**21),
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


def test_every_which_is_named() -> None:
    """As many as have room, in powers of two."""
    assert list(strided(5, needed=8, room=9)) == [0, 1, 2, 3, 4]
    assert list(strided(16, needed=8, room=1.5)) == [0, 8]
