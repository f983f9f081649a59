"""Tests of the picture of who sends to whom."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from ringsim.network import AnyNetwork, Network, load_network
from ringsim.report.plots.graph import draw_graph
from tests.ringsim.report.test_lanes import view_of

NETWORK = Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9)


def drawn(algorithm: str, num_ranks: int, network: AnyNetwork = NETWORK) -> Axes:
    """The picture of a built-in algorithm."""
    axes = Figure(figsize=(4, 4)).subplots()
    draw_graph(axes, view_of(num_ranks, algorithm, network).graph)
    return axes


def names(axes: Axes) -> list[str]:
    """Return the texts in the picture."""
    return [text.get_text() for text in axes.texts if text.get_text()]


def test_a_ring_is_a_ring() -> None:
    """An arrow from each rank to the next, which are on a circle, all with their numbers."""
    axes = drawn("ring", 6)
    [ranks] = [artist for artist in axes.collections if artist.get_label() == "ranks"]
    places = np.asarray(ranks.get_offsets())
    assert names(axes) == [str(rank) for rank in range(6)]
    np.testing.assert_allclose(np.hypot(*(places - 0.5).T), 0.38)
    arrows = [text for text in axes.texts if isinstance(text, Annotation)]
    middles = np.arctan2(*(np.array([arrow.xy for arrow in arrows]) - 0.5).T)
    ahead = np.arctan2(*(places - 0.5).T)
    np.testing.assert_allclose((ahead - middles) % (2 * np.pi), 0.6 * np.pi / 3, atol=1e-9)


def test_of_many_ranks_some_have_numbers() -> None:
    """No two on one another."""
    assert names(drawn("ring", 100))[:2] == ["0", "8"]
    [lines] = [artist for artist in drawn("direct", 16).collections if artist.get_label() == "pairs"]
    assert len(lines.get_paths()) == 16 * 15 / 2


def test_hosts_are_named() -> None:
    """In the boxes that their ranks are in."""
    assert {"host0", "host1"} < set(names(drawn("ring", 16, load_network("dgx-a100"))))
