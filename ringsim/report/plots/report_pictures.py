"""The pictures of a report, as SVG."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from ringsim.analysis import BASELINE
from ringsim.report.plots import charts
from ringsim.report.plots.comparison_figure import draw_time_curves
from ringsim.report.plots.style import drawing, inline_svg, new_figure, palette, points
from ringsim.report.plots.sweep_figure import draw_sweep_curves
from ringsim.units import format_size, format_time, plural
from ringsim.verdict import Attribution, Verdict

_WIDTH, _HEIGHT, _ROW = 6.2, 3.6, 0.3  # inches
_MOST_CURVES = 12  # of a picture: curves of one model trained with many strategies coincide


class Picture(NamedTuple):
    """A picture, its title, and a note below it."""

    title: str
    svg: str
    note: str = ""


_TIMES = charts.TIMES._replace(label="")


def pictures(verdict: Verdict) -> list[Picture]:
    """Return the pictures for which there are data."""
    with drawing("page"):
        parts = _of_probes(verdict), _of_training(verdict), _of_sweeps(verdict)
        return [picture for part in parts for picture in part if picture.svg]


def _picture(
    title: str,
    draw: Callable[[Axes], bool],
    x: charts.Scale | None = None,
    y: charts.Scale | None = None,
    note: str = "",
    height: float = _HEIGHT,
) -> Picture:
    figure = new_figure(_WIDTH, height, layout="constrained")
    axes = figure.subplots()
    charts.describe_axes(axes, x=x, y=y)
    if not draw(axes):
        return Picture(title, "")
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower left", ncols=2, fontsize=points(8.5), frameon=False, handlelength=2.5)
    return Picture(title, inline_svg(figure), note)


def _of_probes(verdict: Verdict) -> Iterator[Picture]:
    subject, forecast = verdict.subject, verdict.forecast
    if subject and forecast:
        yield _causes(forecast.attributions)
        if subject.job:
            results = subject.job.synchronising
            title = f"Synchronisation, predicted and measured ({subject.file})"
            yield _picture(title, partial(charts.draw_sync_times, results=results), height=1.5 + _ROW * len(results))
    for other, comparison in [(other, other.comparison) for other in verdict.subjects if other.comparison]:
        for collective in dict.fromkeys(compared.case.call.collective for compared in comparison.cases):
            own = replace(comparison, cases=tuple(c for c in comparison.cases if c.case.call.collective == collective))
            title = f"{collective} on {other.num_ranks} ranks, predicted and measured ({other.file})"
            note = "Lines: predicted. Bars: 10th to 90th percentile of the measured times."
            yield _picture(title, partial(draw_time_curves, comparison=own), charts.SIZES, _TIMES, note)
    if forecast and (buckets := forecast.buckets):
        caps = [step.config.caps.rest_bytes for step in buckets.steps]
        tried = charts.Curve("step by bucket_cap_mb", caps, [step.step_s for step in buckets.steps])
        default = charts.Curve("torch's default caps", (caps[0], caps[-1]), (buckets.default.step_s,) * 2, marker="")
        x, y, draw = charts.Scale("bucket_cap_mb", format_size, 2), charts.Scale("", format_time), [tried, default]
        yield _picture("Predicted step with DDP by bucket size", partial(charts.draw_curves, curves=draw), x, y)


def _causes(attributions: tuple[Attribution, ...]) -> Picture:
    hues, rows = palette(), range(len(attributions))
    colours = {"bandwidth": hues.blue, "latency": hues.sky, "cores": hues.orange, "a straggler": hues.vermillion}

    def draw(axes: Axes) -> bool:
        ends = np.zeros(len(rows))
        for cause, colour in colours.items():
            shares = [of_size.shares.get(cause, 0.0) for of_size in attributions]
            style: dict[str, Any] = {"height": 0.75, "color": colour, "edgecolor": hues.paper, "linewidth": 0.8}
            axes.barh(rows, shares, left=ends, label=cause, **style)
            ends = ends + shares
        axes.set_yticks(rows, [format_size(of_size.size_bytes) for of_size in attributions], fontsize=points(8))
        axes.set(xlim=(0, 1), ylim=(len(rows) - 0.5, -0.5))
        axes.grid(visible=False, axis="y")
        return True

    title = f"Time of an all_reduce ({BASELINE}, {attributions[0].num_ranks} ranks) by cause and size"
    scale = charts.Scale("share of the predicted time", "{:.0%}".format)
    return _picture(title, draw, scale, height=1.2 + _ROW * len(rows))


def _of_training(verdict: Verdict) -> Iterator[Picture]:
    losses = charts.Scale("", "{:.3g}".format)
    for file, job in verdict.contents.jobs.items():
        by_strategy = {result.strategy: result.losses for result in job.strategies[:_MOST_CURVES]}
        yield _picture(
            f"Loss by step ({file})", partial(charts.draw_loss_curves, curves=by_strategy), charts.STEPS, losses
        )
    curves = []
    for folder, log in list(verdict.contents.logs.items())[:_MOST_CURVES]:
        seen = [entry for entry in log.entries if entry.loss is not None]
        steps, seen_losses = [entry.step for entry in seen], [entry.loss or 0.0 for entry in seen]
        curves.append(charts.Curve(folder, steps, seen_losses, marker=""))
    yield _picture("Loss by step (training runs)", partial(charts.draw_curves, curves=curves), charts.STEPS, losses)


def _of_sweeps(verdict: Verdict) -> Iterator[Picture]:
    for file, sweep in verdict.contents.sweeps.items():
        num_ranks, styles = max(sweep.ranks), palette().styles_of(sweep.algorithms)
        for network in sweep.networks:
            draw = partial(draw_sweep_curves, sweep=sweep, network=network, num_ranks=num_ranks, styles=styles)
            title = f"{sweep.collective.value} on {plural(num_ranks, 'rank')} of {network}, simulated ({file})"
            yield _picture(title, draw, charts.SIZES, _TIMES)
