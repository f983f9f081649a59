"""Tests of the picture of who sends to whom."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from ringsim.network import AnyNetwork, Network, load_network
from ringsim.registry import build
from ringsim.report.plots.lane_facts import LaneFacts
from ringsim.report.plots.pairs import draw_pairs
from ringsim.report.plots.trees import tree_places, trees_of
from ringsim.schedule import Collective
from ringsim.simulation import simulate
from tests.ringsim.report.test_lanes import overview_of

NETWORK = Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9)


def drawn(algorithm: str, num_ranks: int, network: AnyNetwork = NETWORK) -> Axes:
    """The picture of a built-in algorithm."""
    axes = Figure(figsize=(4, 4)).subplots()
    draw_pairs(axes, LaneFacts.of_overview(overview_of(num_ranks, algorithm, network)), algorithm)
    return axes


def names(axes: Axes) -> list[str]:
    """What is written in it."""
    return [text.get_text() for text in axes.texts if text.get_text()]


def test_a_ring_is_a_ring() -> None:
    """An arrow from each rank to the next, which are on a circle, all with their numbers."""
    axes = drawn("ring", 6)
    arrows = [text for text in axes.texts if isinstance(text, Annotation)]
    [ranks] = [artist for artist in axes.collections if artist.get_label() == "ranks"]
    places = np.asarray(ranks.get_offsets())
    assert names(axes) == [str(rank) for rank in range(6)]
    np.testing.assert_allclose(np.hypot(*places.T), 1)
    np.testing.assert_allclose([arrow.xy for arrow in arrows], np.roll(places, -1, axis=0))


def test_of_many_ranks_some_have_numbers() -> None:
    """No two on one another."""
    assert names(drawn("ring", 100))[:2] != ["0", "1"]
    [lines] = [artist for artist in drawn("direct", 16).collections if artist.get_label() == "pairs"]
    assert len(lines.get_paths()) == 16 * 15 / 2


def test_rows_hosts_and_trees_are_named() -> None:
    """A torus has rows, a network hosts, which the hierarchical algorithm takes for granted; a double tree has two."""
    assert {"row 0", "row 3"} < set(names(drawn("torus", 16)))
    assert {"host 0", "host 1"} < set(names(drawn("hierarchical", 16)))
    assert {"host0", "host1"} < set(names(drawn("ring", 16, load_network("dgx-a100"))))
    assert {"tree 1", "tree 2"} < set(names(drawn("double_binary_tree", 8)))


@pytest.mark.parametrize(
    ("algorithm", "count"), [("binomial_tree", 1), ("double_binary_tree", 2), ("ring", 0), ("direct", 0), ("torus", 0)]
)
def test_trees_are_found_in_what_is_sent(algorithm: str, count: int) -> None:
    """Parents above their children, all leaves apart; a chain and a star are none."""
    timeline = simulate(build(Collective.ALL_REDUCE, algorithm, 16), NETWORK, 1 << 20)
    trees = trees_of(timeline)
    assert len(trees) == count
    for edges in trees:
        places = tree_places(edges, 16)
        assert places[0][1] == 0
        assert len(set(places.values())) == 16
        for one, other in edges.tolist():
            assert places[one][1] != places[other][1]
