"""The pictures of a report: times by size, what bounds them, strategies, losses, more ranks, and bucket caps."""

from collections.abc import Iterator, Sequence

from ringsim.measurements import p10_p90
from ringsim.report.pages.charts import COLOURS, ChartPoint, ChartSeries, figure, line_chart, range_chart, share_chart
from ringsim.report.pages.predictions import prediction_pictures
from ringsim.units import format_size, format_time
from ringsim.verdict import Attribution, Bound, JobReport, Verdict

_BOUNDS = {Bound.BANDWIDTH: "blue", Bound.LATENCY: "sky", Bound.CORES: "orange", Bound.STRAGGLER: "vermillion"}
_MOST_CURVES = 12  # of a picture: those of one model trained with many strategies they lie on one another


def pictures(verdict: Verdict) -> Iterator[str]:
    """Yields the HTML of each picture that there are data for."""
    if verdict.forecast and verdict.subject:
        yield _bounds(verdict.forecast.attributions)
    if verdict.subject and verdict.subject.job:
        yield _strategies(verdict.subject.file, verdict.subject.job)
    yield from _collectives(verdict)
    if verdict.forecast:
        yield _ranks(verdict)
        yield _buckets(verdict)
    for file, job in verdict.contents.jobs.items():
        yield _losses(file, [(result.strategy, list(enumerate(result.losses, start=1))) for result in job.strategies])
    yield _losses("training runs", _curves(verdict, "loss"))
    yield _rates(verdict)
    yield from prediction_pictures(verdict.contents)


def _bounds(attributions: Sequence[Attribution]) -> str:
    """Of each size the shares of its bounds."""
    rows = []
    for attribution in attributions:
        shares = [
            (colour, attribution.share(bound), f"{bound.value}: {format_time(attribution.seconds[bound])} of "
             f"{format_time(attribution.time_s)} ({attribution.share(bound):.0%})")
            for bound, colour in _BOUNDS.items()
        ]  # fmt: skip
        rows.append((format_size(attribution.size_bytes), shares))
    legend = [ChartSeries(bound.value, (), colour) for bound, colour in _BOUNDS.items()]
    first = attributions[0]
    title = f"What an all_reduce by a {first.algorithm} on {first.num_ranks} ranks is spent on, by size"
    return figure(title, share_chart(rows, "share of the predicted time"), legend)


def _strategies(file: str, job: JobReport) -> str:
    """Synchronisation, predicted and measured."""
    rows = []
    for result in job.synchronising:
        low, high = p10_p90(result.sync_s) if result.sync_s else (result.measured_sync_s, result.measured_sync_s)
        note = (
            f"{result.strategy}: measured {format_time(result.measured_sync_s)}, {format_time(low)} to "
            f"{format_time(high)}; predicted {format_time(result.predicted_sync_s)}"
        )
        point = ChartPoint(result.measured_sync_s, 0.0, low, high, note)
        rows.append((result.strategy, point, result.predicted_sync_s))
    legend = [
        ChartSeries("measured, median", (), "vermillion", line=False),
        ChartSeries("10th to 90th percentile", (), "orange"),
        ChartSeries("predicted", (), "blue", line=False, dots=False),
    ]
    svg = range_chart(rows, "synchronising gradients, in each step", format_time)
    return figure(f"Synchronisation, predicted and measured ({file})", svg, legend)


def _collectives(verdict: Verdict) -> Iterator[str]:
    """For each collective, the times of each algorithm against size: points measured, lines predicted."""
    for subject in verdict.subjects:
        if subject.comparison is None:
            continue
        cases = subject.comparison.cases
        for collective in dict.fromkeys(case.case.collective for case in cases):
            series = []
            names = list(dict.fromkeys(c.case.algorithm for c in cases if c.case.collective == collective))
            for number, name in enumerate(names):
                colour = COLOURS[number % len(COLOURS)]
                some = [c for c in cases if (c.case.collective, c.case.algorithm) == (collective, name)]
                some.sort(key=lambda compared: compared.case.size_bytes)
                measured = [ChartPoint(c.case.size_bytes, c.case.measured_s, *c.case.spread_s) for c in some]
                predicted = [ChartPoint(c.case.size_bytes, c.predicted_s) for c in some if c.predicted_s is not None]
                series.append(ChartSeries(f"{name}, measured", tuple(measured), colour, line=False))
                series.append(ChartSeries(f"{name}, predicted", tuple(predicted), colour, dots=False))
            svg = line_chart(series, "size of the tensor", format_size, format_time, log=(True, True))
            title = f"{collective} on {subject.num_ranks} ranks, predicted and measured ({subject.file})"
            yield figure(title, svg, series, "Bars: 10th to 90th percentile of the measured times.")


def _ranks(verdict: Verdict) -> str:
    assert verdict.forecast
    assert verdict.subject
    size = format_size(verdict.subject.size_bytes)
    scaled = verdict.forecast.scaled
    points = tuple(
        ChartPoint(entry.num_ranks, entry.all_reduce_s.time_s, entry.all_reduce_s.low_s, entry.all_reduce_s.high_s)
        for entry in scaled
    )
    steps = tuple(
        ChartPoint(entry.num_ranks, entry.step_s.time_s, entry.step_s.low_s, entry.step_s.high_s)
        for entry in scaled
        if entry.step_s
    )
    series = [ChartSeries(f"all_reduce of {size} by a ring", points, "blue")]
    if steps:
        series.append(ChartSeries("a step with DDP", steps, "vermillion"))
    svg = line_chart(series, "ranks", "{:g}".format, format_time, log=(True, True))
    return figure("More ranks of the same kind, predicted", svg, series, "Bars: 95 % interval from the probes' noise.")


def _buckets(verdict: Verdict) -> str:
    assert verdict.forecast
    buckets = verdict.forecast.buckets
    if buckets is None:
        return ""
    caps = [step.config.caps.rest_bytes for step in buckets.steps]
    points = tuple(ChartPoint(cap, step.step_s) for cap, step in zip(caps, buckets.steps, strict=True))
    ends = tuple(ChartPoint(cap, buckets.default.step_s) for cap in (caps[0], caps[-1]))
    series = [
        ChartSeries("step by bucket_cap_mb", points, "blue"),
        ChartSeries("torch's own caps", ends, "faint", dots=False, dashed=True),
    ]
    svg = line_chart(series, "bucket_cap_mb", format_size, format_time, log=(True, False))
    return figure("A step with DDP against the size of its buckets, predicted", svg, series)


Curve = tuple[str, list[tuple[int, float]]]


def _curves(verdict: Verdict, name: str) -> list[Curve]:
    """Of each log, what it says by step under that name."""
    return [
        (folder, [(entry.step, getattr(entry, name)) for entry in log.entries if getattr(entry, name) is not None])
        for folder, log in verdict.contents.logs.items()
    ]


def _losses(source: str, curves: Sequence[Curve]) -> str:
    series = [_series(number, curve) for number, curve in enumerate(curves[:_MOST_CURVES])]
    svg = line_chart(series, "step", "{:g}".format, "{:.3g}".format, log=(False, False), base=10)
    return figure(f"Loss by step ({source})", svg, series)


def _rates(verdict: Verdict) -> str:
    """How fast training runs were as they went on."""
    series = [_series(number, curve) for number, curve in enumerate(_curves(verdict, "samples_per_s")[:_MOST_CURVES])]
    svg = line_chart(series, "step", "{:g}".format, "{:,.6g}".format, log=(False, False), base=10)
    return figure("Samples per second by step (training runs)", svg, series)


def _series(number: int, curve: Curve) -> ChartSeries:
    name, points = curve
    turns, colour = divmod(number, len(COLOURS))
    marks = tuple(ChartPoint(step, value) for step, value in points)
    return ChartSeries(name, marks, COLOURS[colour], dots=False, dashed=bool(turns % 2))
