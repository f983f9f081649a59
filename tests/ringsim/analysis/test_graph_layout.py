"""Tests of `ringsim.analysis.graph_layout`: the drawing follows from who sends to whom."""

import numpy as np
import pytest

from ringsim.analysis.graph_layout import GraphLayout, GraphShape, lay_out_graph
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Collective, permute_ranks

SHAPES = {
    GraphShape.RING: [("ring", 4), ("ring", 2), ("naive_ring", 8)],
    GraphShape.TREE: [("binomial_tree", 4), ("binomial_tree", 8), ("parameter_server", 5)],
    GraphShape.CIRCLE: [("torus", 16), ("direct", 8), ("recursive_doubling", 8), ("ring", 1)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shape_is_that_of_the_pairs(shape: GraphShape) -> None:
    """The algorithm's name has no influence; one rank per host, or one host for all ranks, needs no boxes."""
    for algorithm, num_ranks in SHAPES[shape]:
        schedule = build(Collective.ALL_REDUCE, algorithm, num_ranks)
        assert lay_out_graph(schedule).shape is shape
        assert lay_out_graph(schedule, ("a",) * num_ranks, np.arange(num_ranks)).shape is shape
        assert lay_out_graph(schedule, ("a",), np.zeros(num_ranks, dtype=np.int64)).shape is shape


def test_a_ring_lies_on_a_circle_in_its_own_order() -> None:
    """Also if the ranks are in other places: neighbours in the ring are neighbours on the page."""
    order = [0, 2, 4, 1, 3, 5]
    layout = lay_out_graph(permute_ranks(build(Collective.ALL_REDUCE, "ring", 6), order))
    assert layout.shape is GraphShape.RING
    around = layout.places[order]
    sides = np.linalg.norm(around - np.roll(around, 1, axis=0), axis=1)
    np.testing.assert_allclose(sides, sides[0])
    np.testing.assert_allclose(np.linalg.norm(layout.places - 0.5, axis=1), np.linalg.norm(around[0] - 0.5))


def test_links_are_arcs_of_a_ring() -> None:
    """Half-way they are on the circle; those of both directions lie side by side, and of two ranks on two sides."""
    known = ("ring", 8, [0.38]), ("bidirectional_ring", 8, [0.36, 0.4]), ("ring", 2, [0.152])
    for algorithm, num_ranks, radii in known:
        layout = lay_out_graph(build(Collective.ALL_REDUCE, algorithm, num_ranks))
        half_way = layout.places[layout.pairs].sum(axis=1) / 4 + layout.bends / 2
        assert sorted(set(np.linalg.norm(half_way - 0.5, axis=1).round(3).tolist())) == radii
        assert len(np.unique(half_way.round(6), axis=0)) == len(layout.pairs)


def test_links_bend_round_ranks_and_one_another() -> None:
    """In a line of ranks those that lead over others do, and of two in both directions each has its own side."""
    places, pairs = np.array([(0.1, 0.5), (0.5, 0.5), (0.9, 0.5)]), np.array([(0, 1), (0, 2), (1, 0)])
    bends = GraphLayout(GraphShape.TREE, places, pairs).bends
    np.testing.assert_allclose(bends, [(0.3, 0.5 - 0.07 * 0.4), (0.5, 0.5 - 0.22 * 0.8), (0.3, 0.5 + 0.07 * 0.4)])


def test_a_tree_has_its_root_on_top() -> None:
    """And every rank below the one that it sends to in the reduction."""
    down = lay_out_graph(build(Collective.ALL_REDUCE, "binomial_tree", 8)).places[:, 1]
    assert down[0] == down.min()
    for child, parent in ((1, 0), (2, 0), (4, 0), (3, 2), (6, 4), (7, 6)):
        assert down[child] > down[parent]


def test_ranks_lie_in_the_boxes_of_their_hosts() -> None:
    """Which do not overlap."""
    host_of_rank = np.arange(32) // 8
    names = ("a", "b", "c", "d")
    layout = lay_out_graph(build(Collective.ALL_REDUCE, "hierarchical", 32), names, host_of_rank)
    assert layout.shape is GraphShape.HOSTS
    assert [box.name for box in layout.hosts] == list(names)
    for rank, (x, y) in enumerate(layout.places.tolist()):
        inside = [box.left < x < box.right and box.top < y < box.bottom for box in layout.hosts]
        assert inside == [host == host_of_rank[rank] for host in range(4)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 16])
def test_no_two_ranks_lie_on_each_other(num_ranks: int) -> None:
    """And all lie on the page, whatever the algorithm."""
    for collective, algorithm in ALGORITHMS:
        places = lay_out_graph(build(collective, algorithm, num_ranks)).places
        assert places.shape == (num_ranks, 2)
        assert ((places >= 0) & (places <= 1)).all()
        gaps = np.linalg.norm(places[:, None] - places[None], axis=-1) + np.eye(num_ranks)
        assert gaps.min() > 0.05
