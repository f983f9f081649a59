"""Tests of `ringsim.report.plots`."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from ringsim import Collective, Network
from ringsim.analysis import RunView, pack_sends, waiting_times
from ringsim.registry.algorithms import build
from ringsim.report.plots import save_plot
from ringsim.report.plots.lanes import Lanes, draw_lanes

NETWORK = Network(latency_s=2.0, bandwidth_bytes_per_s=1.0, reduce_bytes_per_s=4.0)


def view_of(num_ranks: int, collective: str = "all_reduce", algorithm: str = "ring") -> RunView:
    """The view of a built-in algorithm, each chunk 8 bytes (4 for gloo_ring)."""
    return RunView(build(Collective(collective), algorithm, num_ranks), NETWORK, 8 * num_ranks)


def drawn_intervals(axes: Axes, label: str) -> list[tuple[int, float, float]]:
    """Rank, begin and end of the bars with this label, in order."""
    [bars] = [collection for collection in axes.collections if collection.get_label() == label]
    boxes = [path.get_extents() for path in bars.get_paths()]
    return sorted((round((box.y0 + box.y1) / 2), box.x0, box.x1) for box in boxes)


def test_lanes_show_the_busy_intervals_of_the_timeline() -> None:
    """Each bar of a lane begins and ends with its transfer: sends on the sender, reductions on the receiver."""
    view = view_of(3)
    axes = Figure().subplots()
    draw_lanes(axes, Lanes.of_view(view))
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
    timeline = view_of(num_ranks, algorithm=algorithm).timeline
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


def test_a_sending_stays_in_the_row_of_its_receiver() -> None:
    """Sends of a tree's rank to one neighbour are easier to follow in one row than in two."""
    timeline = view_of(8, algorithm="double_binary_tree").timeline
    row, leaf = pack_sends(timeline)[0], timeline.src == 1  # sends to 2 and 7 all the time
    assert [set(row[leaf & (timeline.dst == dst)].tolist()) for dst in (2, 7)] == [{0}, {1}]


def test_a_page_is_written(tmp_path: Path) -> None:
    """A PNG is about 2000 pixels wide, an SVG is one file; a suffix that is not of a picture is refused."""
    view = view_of(4, algorithm="gloo_ring")
    for suffix in ("png", "svg"):
        save_plot(view, tmp_path / f"page.{suffix}")
    with pytest.raises(ValueError, match="xyz"):
        save_plot(view, tmp_path / "page.xyz")
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.format == "PNG"
        assert 1900 < picture.width < 2100
        assert picture.height > 1000
        assert np.unique(np.asarray(picture.convert("L"))).size > 50  # not a blank page
    assert "<svg" in (tmp_path / "page.svg").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.png", "page.svg"]
