"""What simulate, explain, ddp and sweep predicted, as pictures of a report."""

from collections.abc import Iterator

from ringsim.analysis import Sweep
from ringsim.files import shortened
from ringsim.report.pages.charts import COLOURS, ChartPoint, ChartSeries, figure, line_chart, share_chart
from ringsim.units import format_size, format_time, plural
from ringsim.verdict import DdpPrediction, RunDirectory

_ROW_NAME = 10  # characters beside a bar
_MOST_ROWS = 20  # of a picture
_PATH_COLOURS = {
    "bandwidth": "blue", "latency": "sky", "contention": "orange", "reduction": "green", "waiting": "vermillion",
    "overhead": "faint",
}  # fmt: skip


def prediction_pictures(contents: RunDirectory) -> Iterator[str]:
    """Yields the HTML of each picture that there are data for."""
    yield _critical_paths(contents)
    for file, prediction in contents.predicted.items():
        yield _caps(file, prediction)
        yield _efficiencies(file, prediction)
    for file, sweep in contents.sweeps.items():
        yield from _times_by_size(file, sweep)


def _critical_paths(contents: RunDirectory) -> str:
    """Of each simulated collective what the time on its critical path is spent on."""
    runs = [(file, run) for file, run in contents.simulated.items() if sum(run.path_s.values()) > 0][:_MOST_ROWS]
    rows = []
    for file, run in runs:
        total_s = sum(run.path_s.values())
        place = f"{file}: {run.collective.value} {run.algorithm}, {plural(run.num_ranks, 'rank')}"
        parts = [
            (_colour(kind), spent_s / total_s, f"{place}, {format_size(run.size_bytes)}: {kind} {format_time(spent_s)}")
            for kind, spent_s in run.path_s.items()
            if spent_s > 0
        ]
        rows.append((shortened(run.algorithm, _ROW_NAME), parts))
    kinds = dict.fromkeys(kind for _, run in runs for kind, spent_s in run.path_s.items() if spent_s > 0)
    legend = [ChartSeries(kind, (), _colour(kind)) for kind in kinds]
    svg = share_chart(rows, "share of the time on the critical path")
    return figure("What simulated collectives spend their time on", svg, legend)


def _colour(kind: str) -> str:
    return _PATH_COLOURS.get(kind, "faint")


def _caps(file: str, prediction: DdpPrediction) -> str:
    """The step against the size of its buckets."""
    points = tuple(ChartPoint(step.cap_bytes, step.step_s) for step in prediction.sweep if step.step_s is not None)
    series = [ChartSeries("step by bucket_cap_mb", tuple(sorted(points, key=lambda point: point.x)), "blue")]
    svg = line_chart(series, "bucket_cap_mb", format_size, format_time, log=(True, False))
    return figure(f"A step with DDP against the size of its buckets ({file})", svg, series)


def _efficiencies(file: str, prediction: DdpPrediction) -> str:
    points = tuple(
        ChartPoint(step.num_ranks, step.efficiency) for step in prediction.scaling if step.efficiency is not None
    )
    series = [ChartSeries("efficiency", points, "blue")]
    svg = line_chart(series, "ranks", "{:g}".format, "{:.1%}".format, log=(True, False))
    return figure(f"Efficiency of a step with DDP by number of ranks ({file})", svg, series)


def _times_by_size(file: str, sweep: Sweep) -> Iterator[str]:
    """For each network the times on the most ranks, a curve for each algorithm."""
    num_ranks = max(sweep.ranks)
    for network in sweep.networks:
        series = []
        for number, name in enumerate(sweep.algorithms):
            cells = [
                cell
                for cell in sweep.cells
                if (cell.network, cell.num_ranks, cell.algorithm) == (network, num_ranks, name) and cell.time_s
            ]
            points = tuple(ChartPoint(c.size_bytes, c.time_s or 0.0) for c in sorted(cells, key=lambda c: c.size_bytes))
            turns, colour = divmod(number, len(COLOURS))
            if points:
                series.append(ChartSeries(name, points, COLOURS[colour], dots=False, dashed=bool(turns % 2)))
        svg = line_chart(series, "size of the tensor", format_size, format_time, log=(True, True))
        title = f"{sweep.collective.value} on {plural(num_ranks, 'rank')} of {network}, simulated ({file})"
        yield figure(title, svg, series)
