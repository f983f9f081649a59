"""The curves of a step on several numbers of ranks."""

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringsim.report.plots.plot import plot
from ringsim.report.plots.step_figures import draw_efficiency, draw_step_times
from ringsim.training_step import predict_scaling
from tests.ringsim.training_step.test_trace_scaling import NETWORK, trace_of

SCALING = predict_scaling(map(trace_of, (2, 4, 8)), NETWORK)


def labels(axes: Axes) -> list[str]:
    """The texts at the points, from the left."""
    return [text.get_text() for text in sorted(axes.texts, key=lambda text: text.xy[0])]  # type: ignore[attr-defined]


def test_the_exposed_part_is_shaded() -> None:
    """From what is computed up to the step, above which its time stands."""
    times, shares = plot(SCALING).axes
    hidden, exposed = (area.get_paths()[0].vertices for area in times.collections)
    (curve,) = times.lines
    assert [step.step_s for step in SCALING.steps] == list(curve.get_ydata())
    for step in SCALING.steps:
        assert hidden[hidden[:, 0] == step.num_ranks][:, 1].max() == pytest.approx(step.compute_s)
        ends = exposed[exposed[:, 0] == step.num_ranks][:, 1]
        assert (ends.min(), ends.max()) == (pytest.approx(step.compute_s), pytest.approx(step.step_s))
    assert labels(shares) == [f"{100 * step.efficiency:.3g} %" for step in SCALING.steps]
    assert shares.get_ylabel() == "of the step on 2 ranks"


def test_labels_have_room() -> None:
    """However many numbers of ranks there are; the last has one."""
    scaling = predict_scaling(map(trace_of, range(2, 22)), NETWORK)
    for draw in (draw_step_times, lambda axes, steps: draw_efficiency(axes, steps, "")):
        axes = Figure().subplots()
        draw(axes, scaling.steps)
        assert 5 <= len(axes.texts) <= 7
        assert max(text.xy[0] for text in axes.texts) == 21  # type: ignore[attr-defined]


def test_one_number_of_ranks_is_drawn() -> None:
    """As points."""
    assert len(plot(predict_scaling([trace_of(4)], NETWORK)).axes) == 2
