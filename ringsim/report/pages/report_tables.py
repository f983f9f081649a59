"""The tables of a report: one for each kind of data, and where all of it comes from."""

from collections.abc import Callable, Iterator
from html import escape
from typing import Any

from ringsim.analysis import busbw_bytes_per_s
from ringsim.report.calibration_table import format_value
from ringsim.report.table import (
    NEVER,
    NOTHING,
    DataTable,
    Row,
    TableCell,
    count_cell,
    ends_cell,
    error_cell,
    rate_cell,
    share_cell,
    size_cell,
    time_cell,
)
from ringsim.verdict import Bound, PredictedDdpStep, SimulatedCollective, Verdict

Rows = Callable[[Verdict], Iterator[Row]]
_SECTIONS: list[Callable[[Verdict], str]] = []
_STEP_COLUMNS = "ranks | bucket_cap_mb | buckets | communication | exposed | step | efficiency"


def tables(verdict: Verdict) -> Iterator[str]:
    """Yield the HTML of each table that there are data for."""
    yield from filter(None, (section(verdict) for section in _SECTIONS))


def _section(name: str, title: str, columns: str, note: str = "") -> Callable[[Rows], Rows]:
    """Make a section of the page, below those made before, of a function that yields rows; left out without rows.

    name: by which the address of a page can ask for an order, #sort=NAME:COLUMN. columns: the headings, between bars.
    """

    def add(rows: Rows) -> Rows:
        def html(verdict: Verdict) -> str:
            table = DataTable(columns.split(" | "), list(rows(verdict)))
            below = f'<p class="faint">{escape(note)}</p>' if note else ""
            heading = f'<h2 id="{name}">{escape(title)}</h2>'
            content = f'<section>{heading}{below}<div class="wide">{table.html(name)}</div></section>'
            return content if table.rows else ""

        _SECTIONS.append(html)
        return rows

    return add


@_section(
    "strategies",
    "Strategies of gradient synchronisation",
    "strategy | sync predicted | sync measured | 10 % to 90 % | error | step predicted | step measured | tokens/s | "
    "final loss | ranks identical | file",
    "Synchronisation begins when the last gradient is ready, and is measured on the last rank to arrive: waiting for "
    "late ranks is part of the step only.",
)
def _strategies(verdict: Verdict) -> Iterator[Row]:
    for file, job in verdict.contents.jobs.items():
        for result in job.strategies:
            yield (
                result.strategy, time_cell(result.predicted_sync_s), time_cell(result.measured_sync_s),
                ends_cell(*result.sync_p10_p90_s), error_cell(result.error),
                time_cell(result.predicted_step_s), time_cell(result.step_s), count_cell(result.tokens_per_s),
                count_cell(result.final_loss, 4), "yes" if result.parameters_identical else "no", file,
            )  # fmt: skip


@_section(
    "collectives",
    "Collectives",
    "collective | algorithm | size | ranks | memory | measured | 10 % to 90 % | busbw | predicted | error | file",
    "Predictions use only the probes of the same file; dist is torch.distributed. Errors exclude the waiting for "
    "ranks that started late, where that is known.",
)
def _collectives(verdict: Verdict) -> Iterator[Row]:
    """Yield measured collectives, with predictions where there are any."""
    compared = {
        (subject.file, c.case.collective, c.case.algorithm, c.case.size_bytes, bool(c.case.in_place_s)): c
        for subject in verdict.subjects
        for c in (subject.comparison.cases if subject.comparison else ())
    }
    for file, measurements in verdict.contents.measurements.items():
        for entry in measurements.collectives:
            name = entry.collective.value
            case = compared.get((file, name, entry.algorithm, entry.size_bytes, entry.in_place))
            busbw = busbw_bytes_per_s(entry.collective, entry.num_ranks, entry.size_bytes, entry.median_s)
            yield (
                name, entry.algorithm, size_cell(entry.size_bytes), count_cell(entry.num_ranks),
                "in place" if entry.in_place else "out of place", time_cell(entry.median_s),
                ends_cell(*entry.p10_p90_s), rate_cell(busbw), time_cell(case.predicted_s if case else None),
                error_cell(case.error if case else None), file,
            )  # fmt: skip


@_section(
    "bounds",
    "Time of an all_reduce on a ring, by cause",
    " | ".join(("size", "predicted", *(bound.value for bound in Bound), "bound")),
    "From four simulations: with all costs, without stragglers, with a core for every thread, and without the fixed "
    "costs of messages. Each share is the time saved by the change.",
)
def _bounds(verdict: Verdict) -> Iterator[Row]:
    for attribution in verdict.forecast.attributions if verdict.forecast else ():
        shares = (share_cell(attribution.share(bound)) for bound in Bound)
        yield size_cell(attribution.size_bytes), time_cell(attribution.time_s), *shares, attribution.bound.value


@_section(
    "algorithms",
    "Algorithms of all_reduce",
    "size | algorithm | predicted | times as fast as the ring | ",
    "Simulated on the network fitted to the probes, including the cost of a call.",
)
def _algorithms(verdict: Verdict) -> Iterator[Row]:
    for choice in verdict.forecast.algorithms if verdict.forecast else ():
        ring_s = choice.times_s.get("ring")
        for name, time_s in choice.times_s.items():
            gain = ring_s / time_s if ring_s and time_s > 0 else None
            mark = "chosen" if name == choice.chosen else "fastest" if name == choice.fastest else ""
            yield size_cell(choice.size_bytes), name, time_cell(time_s), count_cell(gain, 2), mark


@_section(
    "parameters",
    "The fitted network",
    "parameter | value | 95 % interval | from the probes | file",
    "Intervals are sorted by their width relative to the value.",
)
def _parameters(verdict: Verdict) -> Iterator[Row]:
    for subject in verdict.subjects:
        fit = subject.fit
        for name, value in fit.values.items():
            ends = f"{format_value(name, fit.low[name])} to {format_value(name, fit.high[name])}"
            width = (fit.high[name] - fit.low[name]) / value if value and fit.high[name] < float("inf") else 0.0
            shown = TableCell(format_value(name, value), value), TableCell(ends, width)
            yield name, *shown, fit.probes[name], subject.file


@_section("buckets", "Bucket sizes of DDP", "bucket_cap_mb | buckets | step predicted | exposed | ")
def _buckets(verdict: Verdict) -> Iterator[Row]:
    buckets = verdict.forecast.buckets if verdict.forecast else None
    if buckets is None:
        return
    caps = [(count_cell(step.config.caps.rest_bytes / 2**20, 2), step) for step in buckets.steps]
    for cap, step in (*caps, (TableCell("torch's default", 0.0), buckets.default)):
        mark = "best" if step is buckets.best else ""
        yield cap, count_cell(step.num_buckets), time_cell(step.step_s), time_cell(step.exposed_s), mark


@_section(
    "ranks",
    "More ranks of the same kind, predicted",
    "ranks | all_reduce | 95 % interval | step with DDP | 95 % interval",
)
def _ranks(verdict: Verdict) -> Iterator[Row]:
    for entry in verdict.forecast.scaled if verdict.forecast else ():
        cells = [count_cell(entry.num_ranks)]
        for forecast in (entry.all_reduce_s, entry.step_s):
            low_high = (forecast.low_s, forecast.high_s) if forecast else None
            cells += [time_cell(forecast.time_s if forecast else None), ends_cell(*low_high) if low_high else NOTHING]
        yield cells


@_section(
    "compared",
    "Comparisons of ringsim compare",
    "network | collective | algorithm | size | ranks | predicted | measured | error | spread | calibration | file",
)
def _compared(verdict: Verdict) -> Iterator[Row]:
    for file, compared in verdict.contents.cells.items():
        for cell in compared.cells:
            yield (
                compared.network, cell.collective, cell.algorithm, size_cell(cell.size_bytes),
                count_cell(cell.num_ranks),
                time_cell(cell.predicted_s), time_cell(cell.measured_s), error_cell(cell.error),
                share_cell(cell.spread), "used" if cell.used_in_calibration else "held out", file,
            )  # fmt: skip


@_section(
    "trainings",
    "Several ranks compared with one",
    "file | run | ranks | time per batch | speed-up | efficiency | exposed communication | loss difference",
)
def _trainings(verdict: Verdict) -> Iterator[Row]:
    for file, comparison in verdict.contents.comparisons.items():
        for run in comparison.runs:
            shares = share_cell(run.efficiency), share_cell(run.sync_share)
            times = time_cell(run.batch_s), count_cell(run.speed_up, 2)
            loss = TableCell(f"{run.loss_difference:.1e}", run.loss_difference)
            yield file, run.name, count_cell(run.num_ranks), *times, *shares, loss


@_section(
    "runs",
    "Training runs",
    "run | task | strategy | ranks | steps | last loss | samples/s | exposed communication | held-out data",
)
def _runs(verdict: Verdict) -> Iterator[Row]:
    contents = verdict.contents
    for folder in dict.fromkeys((*contents.logs, *contents.sessions)):
        session, log = contents.sessions.get(folder), contents.logs.get(folder)
        last = log.entries[-1] if log else None
        figures = ", ".join(f"{name} {value:.4g}" for name, value in session.evaluation.items()) if session else ""
        about = (session.task, session.strategy, count_cell(session.num_ranks)) if session else ("-", "-", NOTHING)
        seen = [NOTHING] * 4
        if last:
            seen = [count_cell(last.step), count_cell(last.loss, 4), count_cell(last.samples_per_s)]
            seen.append(share_cell(last.sync_share))
        yield folder, *about, *seen, figures or "-"


@_section(
    "winners",
    "Fastest algorithms of the sweeps",
    "file | network | ranks | size | algorithm | time | times as fast as the ring | busbw",
)
def _winners(verdict: Verdict) -> Iterator[Row]:
    for file, sweep in verdict.contents.sweeps.items():
        for (network, num_ranks, size), winner in sweep.winners().items():
            cell = winner.cell
            times = time_cell(cell.time_s), count_cell(winner.over_ring, 2), rate_cell(cell.busbw_bytes_per_s)
            yield file, network, count_cell(num_ranks), size_cell(size), cell.algorithm, *times


@_section(
    "simulated",
    "Simulated collectives",
    "collective | algorithm | size | ranks | network | time | busbw | steps | transfers | critical path | "
    "bottleneck | file",
    "Predictions of ringsim simulate and ringsim explain.",
)
def _simulated(verdict: Verdict) -> Iterator[Row]:
    for file, run in verdict.contents.simulated.items():
        busbw = busbw_bytes_per_s(run.collective, run.num_ranks, run.size_bytes, run.time_s or 0.0)
        yield (
            run.collective.value, run.algorithm, size_cell(run.size_bytes), count_cell(run.num_ranks), run.network,
            time_cell(run.time_s, NEVER), rate_cell(busbw), count_cell(run.num_steps), count_cell(run.num_transfers),
            _path(run), run.bottleneck or "-", file,
        )  # fmt: skip


def _path(run: SimulatedCollective) -> str:
    """Return the shares of the critical path's time, the largest first, without those that would be shown as 0."""
    shares = sorted(run.path_shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {share:.1%}" for kind, share in shares if share >= 0.0005)


@_section(
    "ddp",
    "Training steps with DDP",
    f"network | {_STEP_COLUMNS} | step with torch's default caps | single process | file",
    "Predictions of ringsim ddp, with the given bucket_cap_mb, or the best of several.",
)
def _ddp(verdict: Verdict) -> Iterator[Row]:
    for file, prediction in verdict.contents.predicted.items():
        others = time_cell(prediction.default_step_s, NEVER), time_cell(prediction.step.single_s)
        yield prediction.network, *_step_cells(prediction.step), *others, file


@_section("ddp_varied", "Training steps with other bucket sizes or ranks", f"varied | {_STEP_COLUMNS} | file")
def _ddp_varied(verdict: Verdict) -> Iterator[Row]:
    for file, prediction in verdict.contents.predicted.items():
        for kind, steps in (("bucket size", prediction.sweep), ("ranks", prediction.scaling)):
            for step in steps:
                yield kind, *_step_cells(step), file


def _step_cells(step: PredictedDdpStep) -> tuple[TableCell, ...]:
    """Return the cells below _STEP_COLUMNS."""
    counts = count_cell(step.num_ranks), count_cell(step.cap_bytes / 2**20, 2), count_cell(step.num_buckets)
    times = (time_cell(time_s, NEVER) for time_s in (step.communication_s, step.exposed_s, step.step_s))
    return *counts, *times, share_cell(step.efficiency if step.step_s is not None else None)


@_section("files", "Sources", "file | kind | machine | cores | date | versions | command")
def _origins(verdict: Verdict) -> Iterator[Row]:
    """Yield each file with its kind and what it notes of where it comes from."""
    contents = verdict.contents
    known: list[tuple[str, str, dict[str, Any]]] = [
        *((name, "measurements", m.provenance) for name, m in contents.measurements.items()),
        *((name, "strategy comparison", job.measurements.provenance) for name, job in contents.jobs.items()),
        *((name, "step profile", profile.provenance) for name, profile in contents.profiles.items()),
        *((name, "sweep", sweep.provenance) for name, sweep in contents.sweeps.items()),
        *((name, "trainers compare", c.provenance) for name, c in contents.comparisons.items()),
        *((f"{name}/result.json", "training run", s.provenance) for name, s in contents.sessions.items()),
        *((f"{name}/log.jsonl", "training log", {}) for name in contents.logs),
        *((name, "network", {"machine": c.source}) for name, c in contents.networks.items()),
        *((name, "comparison", {}) for name in contents.cells),
        *((name, "simulated collective", {}) for name in contents.simulated),
        *((name, "predicted step with DDP", {}) for name in contents.predicted),
    ]
    for name, kind, where in known:
        versions = [f"{program} {where[program]}" for program in ("ringsim", "torch", "python") if where.get(program)]
        noted = (str(where.get(key, "-")) for key in ("machine", "cores", "date"))
        yield name, kind, *noted, ", ".join(versions) or "-", str(where.get("command", "-"))


@_section("refused", "Files missing from this report, or only partly used", "file | reason")
def _refused(verdict: Verdict) -> Iterator[Row]:
    yield from sorted(verdict.contents.refused.items())
