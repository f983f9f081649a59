"""`plot`: the picture of a result as a matplotlib Figure, for notebooks and pages of one's own."""

from functools import singledispatch

from matplotlib.figure import Figure

from ringsim.analysis import Overview, Sweep
from ringsim.calibration import ComparedRun, Comparison
from ringsim.report.plots.comparison_figure import draw_times
from ringsim.report.plots.overview_figure import draw_overview
from ringsim.report.plots.run_figure import draw_run
from ringsim.report.plots.sweep_figure import draw_sweep
from ringsim.report.plots.training_step_figure import draw_prediction
from ringsim.training_step import Prediction


@singledispatch
def plot(result: object) -> Figure:
    """Draw what was worked out: an Overview, a Sweep, a prediction of a training step, a comparison, a recorded run.

    Returns a Figure without a window: `savefig` writes it, and a notebook shows it.

    Raises TypeError for a result that there is no picture of.

        >>> from ringsim import Network, make_overview, plot, ring_all_reduce
        >>> overview = make_overview(ring_all_reduce(4), Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9), 2**20)
        >>> plot(overview).savefig("ring.svg")
    """
    raise TypeError(f"{type(result).__name__}: there is no picture of it; make_overview and run_sweep make results")


plot.register(Overview, draw_overview)
plot.register(Sweep, draw_sweep)
plot.register(Prediction, draw_prediction)
plot.register(ComparedRun, draw_run)
plot.register(Comparison, draw_times)
