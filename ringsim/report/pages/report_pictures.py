"""The pictures of a report, as SVG: times by size, their bounds, strategies, losses, more ranks, and bucket caps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import NamedTuple

from matplotlib.axes import Axes

from ringsim.analysis import Sweep
from ringsim.calibration import Comparison
from ringsim.files import shortened
from ringsim.report.plots.algorithm_styles import dark_colours, styles_of
from ringsim.report.plots.charts import (
    Curve,
    Label,
    draw_curves,
    draw_loss_curves,
    draw_shares,
    draw_sync_times,
    set_axis,
)
from ringsim.report.plots.comparison_figure import draw_time_curves
from ringsim.report.plots.style import drawing, inline_svg, new_figure, palette, points
from ringsim.report.plots.sweep_figure import draw_sweep_curves
from ringsim.units import format_size, format_time, plural
from ringsim.verdict import Attribution, Bound, JobReport, RunDirectory, Verdict

_WIDTH, _HEIGHT, _ROW = 6.2, 3.6, 0.3  # inches
_MOST_CURVES = 12  # of a picture: those of one model trained with many strategies they lie on one another
_MOST_ROWS, _ROW_NAME = 20, 10  # of a picture; characters


def pictures(verdict: Verdict) -> Iterator[str]:
    """Yield the HTML of each picture that there are data for, light or dark as the page is."""
    with drawing("page"):
        yield from filter(None, _pictures(verdict))


def svg_colours() -> str:
    """Return the style of a page that makes its pictures follow light and dark, see `inline_svg`."""
    dark = "".join(f" --x{light[1:]}: {colour};" for light, colour in dark_colours().items())
    return f"@media (prefers-color-scheme: dark) {{ figure svg {{{dark} }} }}\n"


def _pictures(verdict: Verdict) -> Iterator[str]:
    subject, forecast = verdict.subject, verdict.forecast
    if forecast and subject:
        yield _bounds(forecast.attributions)
    if subject and subject.job:
        yield _strategies(subject.file, subject.job)
    for other in verdict.subjects:
        if other.comparison:
            yield from _collectives(
                f"on {other.num_ranks} ranks, predicted and measured ({other.file})", other.comparison
            )
    yield _ranks(verdict)
    if forecast and (buckets := forecast.buckets):
        steps = [(step.config.caps.rest_bytes, step.step_s) for step in buckets.steps]
        yield _caps("Predicted step with DDP by bucket size", steps, buckets.default.step_s)
    yield from _training(verdict.contents)
    yield _critical_paths(verdict.contents)
    yield from _predicted_steps(verdict.contents)
    for file, sweep in verdict.contents.sweeps.items():
        yield from _times_by_size(file, sweep)


class _Scale(NamedTuple):
    """How an axis is labelled, and written; log_base: of a logarithmic one."""

    label: str
    text: Label
    log_base: int | None = None


_STEPS = _Scale("step", "{:g}".format)
_RANKS = _Scale("ranks", "{:g}".format, 2)
_SIZES = _Scale("size of the tensor", format_size, 2)
_TIMES = _Scale("", format_time, 10)


def _picture(
    title: str,
    draw: Callable[[Axes], bool],
    x: _Scale | None = None,
    y: _Scale | None = None,
    note: str = "",
    height: float = _HEIGHT,
) -> str:
    """Return a picture with its title, a legend of what is drawn, and a note; "" if `draw` finds nothing to draw."""
    figure = new_figure(_WIDTH, height, layout="constrained")
    axes = figure.subplots()
    for axis, scale in ((axes.xaxis, x), (axes.yaxis, y)):
        if scale:
            set_axis(axis, *scale)
    if not draw(axes):
        return ""
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower left", ncols=2, fontsize=points(8.5), frameon=False, handlelength=2.5)
    below = f'<p class="faint">{escape(note)}</p>' if note else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{inline_svg(figure)}{below}</figure>"


def _line_chart(title: str, curves: Sequence[Curve], x: _Scale, y: _Scale, note: str = "") -> str:
    return _picture(title, partial(draw_curves, curves=curves), x, y, note)


def _share_chart(
    title: str, label: str, rows: Sequence[tuple[str, Mapping[str, float]]], colours: Mapping[str, str]
) -> str:
    draw = partial(draw_shares, rows=rows, colours=colours)
    return _picture(title, draw, _Scale(label, "{:.0%}".format), height=1.2 + _ROW * len(rows))


def _bounds(attributions: Sequence[Attribution]) -> str:
    """Return the shares of the bounds, by size."""
    hues = palette()
    colours = {Bound.BANDWIDTH: hues.blue, Bound.LATENCY: hues.sky, Bound.CORES: hues.orange,
               Bound.STRAGGLER: hues.vermillion}  # fmt: skip
    rows = [
        (format_size(attribution.size_bytes), {bound.value: attribution.share(bound) for bound in colours})
        for attribution in attributions
    ]
    first = attributions[0]
    title = f"Time of an all_reduce ({first.algorithm}, {first.num_ranks} ranks) by cause and size"
    named = {bound.value: colour for bound, colour in colours.items()}
    return _share_chart(title, "share of the predicted time", rows, named)


def _strategies(file: str, job: JobReport) -> str:
    results = job.synchronising
    title = f"Synchronisation, predicted and measured ({file})"
    return _picture(title, partial(draw_sync_times, results=results), height=1.5 + _ROW * len(results))


def _collectives(where: str, comparison: Comparison) -> Iterator[str]:
    """Yield a picture for each collective: the times of its algorithms against size."""
    for collective in dict.fromkeys(compared.case.collective for compared in comparison.cases):
        cases = tuple(compared for compared in comparison.cases if compared.case.collective == collective)
        draw = partial(draw_time_curves, comparison=replace(comparison, cases=cases))
        note = "Lines: predicted. Bars: 10th to 90th percentile of the measured times."
        yield _picture(f"{collective} {where}", draw, _SIZES, _TIMES, note)


def _ranks(verdict: Verdict) -> str:
    if not (verdict.forecast and verdict.subject):
        return ""
    name = f"all_reduce of {format_size(verdict.subject.size_bytes)} on a ring"
    curves = []
    for curve, field in ((name, "all_reduce_s"), ("a step with DDP", "step_s")):
        seen = [(entry.num_ranks, getattr(entry, field)) for entry in verdict.forecast.scaled if getattr(entry, field)]
        if seen:
            ranks, times = zip(*seen, strict=True)
            ends = [time.low_s for time in times], [time.high_s for time in times]
            curves.append(Curve(curve, ranks, [time.time_s for time in times], *ends))
    note = "Bars: 95 % interval due to the noise of the probes."
    return _line_chart("More ranks of the same kind, predicted", curves, _RANKS, _TIMES, note)


def _caps(title: str, steps: Sequence[tuple[int, float | None]], default_s: float | None = None) -> str:
    """Return the time of a step against the size of its buckets; default_s: with torch's own caps."""
    caps, times = zip(*sorted((cap, time_s) for cap, time_s in steps if time_s is not None), strict=True)
    curves = [Curve("step by bucket_cap_mb", caps, times)]
    if default_s is not None:
        curves.append(Curve("torch's default caps", (caps[0], caps[-1]), (default_s,) * 2, marker=""))
    return _line_chart(title, curves, _Scale("bucket_cap_mb", format_size, 2), _Scale("", format_time))


def _training(contents: RunDirectory) -> Iterator[str]:
    """Yield the losses of strategy comparisons and training runs, and how fast the runs were as they went on."""
    for file, job in contents.jobs.items():
        losses = {result.strategy: result.losses for result in job.strategies[:_MOST_CURVES]}
        draw = partial(draw_loss_curves, curves=losses)
        yield _picture(f"Loss by step ({file})", draw, _STEPS, _Scale("", "{:.3g}".format))
    logs = list(contents.logs.items())[:_MOST_CURVES]
    for title, field, text in (
        ("Loss by step (training runs)", "loss", "{:.3g}"),
        ("Samples per second by step (training runs)", "samples_per_s", "{:,.6g}"),
    ):
        curves = []
        for folder, log in logs:
            seen = [entry for entry in log.entries if getattr(entry, field) is not None]
            x, y = [entry.step for entry in seen], [getattr(entry, field) for entry in seen]
            curves.append(Curve(folder, x, y, marker=""))
        yield _line_chart(title, curves, _STEPS, _Scale("", text.format))


def _critical_paths(contents: RunDirectory) -> str:
    """Return what the time on the critical path of each simulated collective is spent on."""
    runs = [run for run in contents.simulated.values() if run.path_shares][:_MOST_ROWS]
    rows = [(f"{shortened(run.algorithm, _ROW_NAME)} {format_size(run.size_bytes)}", run.path_shares) for run in runs]
    hues = palette()
    colours = {"bandwidth": hues.blue, "latency": hues.sky, "contention": hues.orange, "reduction": hues.peach,
               "waiting": hues.vermillion}  # fmt: skip
    title = "Time of simulated collectives by cause"
    return _share_chart(title, "share of the time on the critical path", rows, colours)


def _predicted_steps(contents: RunDirectory) -> Iterator[str]:
    for file, prediction in contents.predicted.items():
        sizes = [(step.cap_bytes, step.step_s) for step in prediction.sweep if step.step_s is not None]
        if sizes:
            yield _caps(f"Predicted step with DDP by bucket size ({file})", sizes)
        steps = [step for step in prediction.scaling if step.efficiency is not None]
        shares = [step.efficiency or 0.0 for step in steps]
        curve = Curve("efficiency", [step.num_ranks for step in steps], shares)
        title = f"Efficiency of a step with DDP by number of ranks ({file})"
        yield _line_chart(title, [curve], _RANKS, _Scale("", "{:.1%}".format))


def _times_by_size(file: str, sweep: Sweep) -> Iterator[str]:
    """Yield for each network the times on the most ranks, a curve for each algorithm."""
    num_ranks, styles = max(sweep.ranks), styles_of(sweep.algorithms)
    for network in sweep.networks:
        draw = partial(draw_sweep_curves, sweep=sweep, network=network, num_ranks=num_ranks, styles=styles)
        title = f"{sweep.collective.value} on {plural(num_ranks, 'rank')} of {network}, simulated ({file})"
        yield _picture(title, draw, _SIZES, _TIMES)
