"""The page of a timeline alone: its lanes."""

from matplotlib.figure import Figure

from ringsim.analysis import check_few_ranks
from ringsim.report.plots.lane_facts import LaneFacts
from ringsim.report.plots.lanes import draw_lanes
from ringsim.report.plots.overview_figure import WIDTH, lanes_height_of, margins
from ringsim.report.plots.palette import palette
from ringsim.report.plots.style import new_figure, points
from ringsim.simulation import Timeline
from ringsim.units import format_time

_TITLE_HEIGHT = 0.45  # inches


def draw_timeline(timeline: Timeline) -> Figure:
    """Draws the lanes of a run, and what of it never ends. Raises ValueError for more ranks than a picture shows."""
    check_few_ranks(timeline.num_ranks)
    facts = LaneFacts.of_timeline(timeline)
    lanes, above = lanes_height_of(facts)
    height = lanes + _TITLE_HEIGHT
    figure = new_figure(WIDTH, height)
    edges = margins(height, above + _TITLE_HEIGHT, 0.5)
    until = "never finishes" if facts.stall else f"done after {format_time(timeline.time_s)}"
    text = f"{timeline.num_ranks} ranks   ·   {len(timeline)} transfers   ·   {until}"
    colours = palette()
    figure.text(edges["left"], 1 - 0.25 / height, text, fontsize=points(10), va="center",
                color=colours.vermillion if facts.stall else colours.dark_grey)  # fmt: skip
    draw_lanes(figure.subplots(gridspec_kw=edges), facts)
    return figure
