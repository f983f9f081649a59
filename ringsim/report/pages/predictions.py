"""What simulate, explain, ddp and sweep predicted, as tables and pictures of a report."""

from collections.abc import Iterator

from ringsim.analysis import Sweep, busbw_bytes_per_s
from ringsim.files import shortened
from ringsim.report.pages.charts import COLOURS, ChartPoint, ChartSeries, figure, line_chart, share_chart
from ringsim.report.pages.tables import (
    NOTHING,
    Row,
    TableCell,
    count_cell,
    rate_cell,
    share_cell,
    size_cell,
    table,
    time_cell,
)
from ringsim.units import format_size, format_time, plural
from ringsim.verdict import DdpPrediction, PredictedDdpStep, RunDirectory, SimulatedCollective

_NEVER = TableCell("never finishes", float("inf"))
_ROW_NAME = 10  # characters beside a bar
_MOST_ROWS = 20  # of a picture
_PATH_COLOURS = {
    "bandwidth": "blue", "latency": "sky", "contention": "orange", "reduction": "green", "waiting": "vermillion",
    "overhead": "faint",
}  # fmt: skip


def prediction_tables(contents: RunDirectory) -> Iterator[str]:
    """Yields the HTML of each table that there are data for."""
    yield _simulated(contents)
    yield _steps(contents)
    yield _more_steps(contents)


def prediction_pictures(contents: RunDirectory) -> Iterator[str]:
    """Yields the HTML of each picture that there are data for."""
    yield _critical_paths(contents)
    for file, prediction in contents.predicted.items():
        yield _caps(file, prediction)
        yield _efficiencies(file, prediction)
    for file, sweep in contents.sweeps.items():
        yield from _times_by_size(file, sweep)


def _simulated(contents: RunDirectory) -> str:
    rows: list[Row] = [
        (
            run.collective.value, run.algorithm, size_cell(run.size_bytes), count_cell(run.num_ranks), run.network,
            _time(run.time_s),
            rate_cell(busbw_bytes_per_s(run.collective, run.num_ranks, run.size_bytes, run.time_s or 0.0)),
            count_cell(run.num_steps), count_cell(run.num_transfers), _path(run), run.bottleneck or "-", file,
        )
        for file, run in contents.simulated.items()
    ]  # fmt: skip
    headings = ("collective", "algorithm", "size", "ranks", "network", "time", "busbw", "steps", "transfers",
                "critical path", "bottleneck", "file")  # fmt: skip
    return table("simulated", "Simulated collectives", headings, rows, "What ringsim simulate and explain predicted.")


def _path(run: SimulatedCollective) -> str:
    """Of the time of the critical path the shares, the largest first, without those that would be shown as 0."""
    total_s = sum(run.path_s.values())
    shares = sorted(run.path_s.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {spent_s / total_s:.1%}" for kind, spent_s in shares if spent_s >= 5e-4 * total_s > 0)


def _steps(contents: RunDirectory) -> str:
    rows: list[Row] = [
        (
            prediction.network, *_step_cells(prediction.step), _time(prediction.default_step_s),
            time_cell(prediction.step.single_s), file,
        )
        for file, prediction in contents.predicted.items()
    ]  # fmt: skip
    headings = ("network", *_STEP_HEADINGS, "step with torch's own caps", "one process alone", "file")
    note = "What ringsim ddp predicted, with the bucket_cap_mb that was asked for, or the best of several."
    return table("ddp", "Training steps with DDP", headings, rows, note)


def _more_steps(contents: RunDirectory) -> str:
    rows: list[Row] = [
        (kind, *_step_cells(step), file)
        for file, prediction in contents.predicted.items()
        for kind, steps in (("bucket size", prediction.sweep), ("ranks", prediction.scaling))
        for step in steps
    ]
    headings = ("varied", *_STEP_HEADINGS, "file")
    return table("ddp_varied", "Training steps with other buckets and ranks", headings, rows)


_STEP_HEADINGS = ("ranks", "bucket_cap_mb", "buckets", "communication", "exposed", "step", "efficiency")


def _step_cells(step: PredictedDdpStep) -> tuple[TableCell, ...]:
    return (
        count_cell(step.num_ranks), count_cell(step.cap_bytes / 2**20, 2), count_cell(step.num_buckets),
        _time(step.communication_s), _time(step.exposed_s), _time(step.step_s),
        share_cell(step.efficiency) if step.step_s is not None else NOTHING,
    )  # fmt: skip


def _time(time_s: float | None) -> TableCell:
    return _NEVER if time_s is None else time_cell(time_s)


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
