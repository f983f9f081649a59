"""The page of a schedule alone: what each rank holds after its steps, and who sends to whom."""

from matplotlib.figure import Figure

from ringsim.analysis import ChunkStates, check_few_ranks
from ringsim.network import Network
from ringsim.report.plots.chunk_grid import draw_chunk_grid
from ringsim.report.plots.lane_facts import LaneFacts
from ringsim.report.plots.overview_figure import WIDTH, grid_height_of, margins, panel_gaps
from ringsim.report.plots.pairs import draw_pairs
from ringsim.report.plots.style import new_figure, points
from ringsim.schedule import Schedule
from ringsim.simulation import simulate

_TITLE_HEIGHT, _PAIRS_HEIGHT, _PAIRS_WIDTH = 0.5, 3.8, 4.0  # inches


def draw_schedule(schedule: Schedule) -> Figure:
    """Draws the chunk grid, and below it the pairs of ranks. Raises ValueError for more ranks than a picture shows."""
    check_few_ranks(schedule.num_ranks)
    states = ChunkStates.of(schedule)
    grid = grid_height_of(states)
    facts = LaneFacts.of_timeline(simulate(schedule, Network(latency_s=1.0, bandwidth_bytes_per_s=1.0), 0))
    pairs = _PAIRS_HEIGHT if len(facts.timeline) else 0.0
    figure = new_figure(WIDTH, _TITLE_HEIGHT + grid + pairs)
    heights = [_TITLE_HEIGHT, grid, pairs] if pairs else [_TITLE_HEIGHT, grid]
    head, middle, *bottom = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    edges = margins(grid, 0.5, 0.3)
    steps = f"{schedule.num_steps} step{'s' * (schedule.num_steps != 1)}"
    head.text(edges["left"], 0.4, f"{schedule}, {steps}", fontsize=points(15), fontweight="bold", va="center")
    draw_chunk_grid(middle, states, margins=edges | panel_gaps(states))
    for part in bottom:
        place = margins(_PAIRS_HEIGHT, 0.4, 0.2) | {"right": edges["left"] + _PAIRS_WIDTH / WIDTH}
        draw_pairs(part.subplots(gridspec_kw=place), facts, schedule.algorithm)
    return figure
