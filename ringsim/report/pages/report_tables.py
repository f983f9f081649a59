"""The tables of a report: one for each kind of data, and where all of it comes from."""

from collections.abc import Iterator
from typing import Any

from ringsim.analysis import busbw_bytes_per_s
from ringsim.measurements import p10_p90
from ringsim.report.calibration_table import format_value
from ringsim.report.pages.predictions import prediction_tables
from ringsim.report.pages.tables import (
    NOTHING,
    Row,
    TableCell,
    count_cell,
    ends_cell,
    rate_cell,
    share_cell,
    size_cell,
    table,
    time_cell,
)
from ringsim.schedule import Collective
from ringsim.verdict import Bound, Verdict


def tables(verdict: Verdict) -> Iterator[str]:
    """Yields the HTML of each table that there are data for."""
    yield _strategies(verdict)
    yield _collectives(verdict)
    yield _bounds(verdict)
    yield _algorithms(verdict)
    yield _parameters(verdict)
    yield _buckets(verdict)
    yield _ranks(verdict)
    yield _cells(verdict)
    yield _comparisons(verdict)
    yield _runs(verdict)
    yield _winners(verdict)
    yield from prediction_tables(verdict.contents)
    yield _origins(verdict)


def _strategies(verdict: Verdict) -> str:
    rows: list[Row] = []
    for file, job in verdict.contents.jobs.items():
        for result in job.strategies:
            low, high = p10_p90(result.sync_s) if result.sync_s else (0.0, 0.0)
            measured, predicted = result.measured_sync_s, result.predicted_sync_s
            error = predicted / measured - 1 if measured > 0 and predicted > 0 else None
            rows.append((
                result.strategy, time_cell(predicted), time_cell(measured), ends_cell(low, high),
                share_cell(error, signed=True), time_cell(result.predicted_step_s), time_cell(result.step_s),
                count_cell(result.tokens_per_s), count_cell(result.final_loss, 4),
                "yes" if result.parameters_identical else "no", file,
            ))  # fmt: skip
    headings = ("strategy", "sync predicted", "sync measured", "10 % to 90 %", "error", "step predicted",
                "step measured", "tokens/s", "final loss", "ranks identical", "file")  # fmt: skip
    note = (
        "Synchronisation from the last gradient's being ready, as the last rank to arrive sees it: waiting for late "
        "ranks counts in the step alone."
    )
    return table("strategies", "Strategies of gradient synchronisation", headings, rows, note)


def _collectives(verdict: Verdict) -> str:
    """Measured collectives, with predictions where there are any."""
    compared = {
        (subject.file, c.case.collective, c.case.algorithm, c.case.size_bytes, bool(c.case.in_place_s)): c
        for subject in verdict.subjects
        for c in (subject.comparison.cases if subject.comparison else ())
    }
    rows: list[Row] = []
    for file, measurements in verdict.contents.measurements.items():
        for entry in measurements.collectives:
            name = entry.collective.value
            case = compared.get((file, name, entry.algorithm, entry.size_bytes, entry.in_place))
            busbw = busbw_bytes_per_s(entry.collective, entry.num_ranks, entry.size_bytes, entry.median_s)
            rows.append((
                name, entry.algorithm, size_cell(entry.size_bytes), count_cell(entry.num_ranks),
                "in place" if entry.in_place else "out of place", time_cell(entry.median_s),
                ends_cell(*entry.p10_p90_s), rate_cell(busbw), time_cell(case.predicted_s if case else None),
                share_cell(case.error if case else None, signed=True), file,
            ))  # fmt: skip
    headings = ("collective", "algorithm", "size", "ranks", "memory", "measured", "10 % to 90 %", "busbw", "predicted",
                "error", "file")  # fmt: skip
    note = (
        "Predicted from the probes of the same file alone; dist is torch.distributed's own. Errors leave out waiting "
    )
    note += "for ranks that began late, where that is known."
    return table("collectives", "Collectives", headings, rows, note)


def _bounds(verdict: Verdict) -> str:
    if not verdict.forecast:
        return ""
    rows: list[Row] = [
        (
            size_cell(attribution.size_bytes),
            time_cell(attribution.time_s),
            *(share_cell(attribution.share(bound)) for bound in Bound),
            attribution.bound.value,
        )
        for attribution in verdict.forecast.attributions
    ]
    headings = ("size", "predicted", *(bound.value for bound in Bound), "bound")
    note = (
        "Simulated four times: as it is, without stragglers, with cores for all, and without the costs of messages; "
        "each share is what the time shrinks by."
    )
    return table("bounds", "What an all_reduce by a ring is spent on", headings, rows, note)


def _algorithms(verdict: Verdict) -> str:
    if not verdict.forecast:
        return ""
    rows: list[Row] = []
    for choice in verdict.forecast.algorithms:
        ring_s = choice.times_s.get("ring")
        for name, time_s in choice.times_s.items():
            gain = ring_s / time_s if ring_s and time_s > 0 else None
            mark = "chosen" if name == choice.chosen else "fastest" if name == choice.fastest else ""
            rows.append((size_cell(choice.size_bytes), name, time_cell(time_s), count_cell(gain, 2), mark))
    headings = ("size", "algorithm", "predicted", "times as fast as the ring", "")
    note = "Simulated on the network fitted to the probes, with what a call costs."
    return table("algorithms", "Algorithms of all_reduce", headings, rows, note)


def _parameters(verdict: Verdict) -> str:
    rows: list[Row] = []
    for subject in verdict.subjects:
        fit = subject.fit
        for name, value in fit.values.items():
            ends = f"{format_value(name, fit.low[name])} to {format_value(name, fit.high[name])}"
            width = (fit.high[name] - fit.low[name]) / value if value and fit.high[name] < float("inf") else 0.0
            shown = TableCell(format_value(name, value), value)
            rows.append((name, shown, TableCell(ends, width), fit.probes[name], subject.file))
    headings = ("parameter", "value", "95 % between", "from the probes", "file")
    return table(
        "parameters", "The fitted network", headings, rows, "Intervals sort by their width relative to the value."
    )


def _buckets(verdict: Verdict) -> str:
    if not verdict.forecast or not verdict.forecast.buckets:
        return ""
    buckets = verdict.forecast.buckets
    rows: list[Row] = [
        (
            count_cell(step.config.caps.rest_bytes / 2**20, 2),
            count_cell(len(step.buckets)),
            time_cell(step.step_s),
            time_cell(step.exposed_s),
            "best" if step is buckets.best else "",
        )
        for step in buckets.steps
    ]
    rows.append((TableCell("torch's own", 0.0), count_cell(len(buckets.default.buckets)),
                 time_cell(buckets.default.step_s), time_cell(buckets.default.exposed_s), ""))  # fmt: skip
    headings = ("bucket_cap_mb", "buckets", "step predicted", "exposed", "")
    return table("buckets", "Bucket sizes of DDP", headings, rows)


def _ranks(verdict: Verdict) -> str:
    if not verdict.forecast:
        return ""
    rows: list[Row] = [
        (
            count_cell(entry.num_ranks),
            time_cell(entry.all_reduce_s.time_s),
            ends_cell(entry.all_reduce_s.low_s, entry.all_reduce_s.high_s),
            time_cell(entry.step_s.time_s) if entry.step_s else NOTHING,
            ends_cell(entry.step_s.low_s, entry.step_s.high_s) if entry.step_s else NOTHING,
        )
        for entry in verdict.forecast.scaled
    ]
    headings = ("ranks", "all_reduce", "95 % between", "step with DDP", "95 % between")
    return table("ranks", "More ranks of the same kind, predicted", headings, rows)


def _cells(verdict: Verdict) -> str:
    rows: list[Row] = [
        (
            compared.network, cell.collective, cell.algorithm, size_cell(cell.size_bytes), count_cell(cell.num_ranks),
            time_cell(cell.predicted_s), time_cell(cell.measured_s), share_cell(cell.error, signed=True),
            share_cell(cell.spread), "used" if cell.used_in_calibration else "held out", file,
        )
        for file, compared in verdict.contents.cells.items()
        for cell in compared.cells
    ]  # fmt: skip
    headings = ("network", "collective", "algorithm", "size", "ranks", "predicted", "measured", "error", "spread",
                "calibration", "file")  # fmt: skip
    return table("compared", "Comparisons of ringsim compare", headings, rows)


def _comparisons(verdict: Verdict) -> str:
    rows: list[Row] = [
        (
            file, run.name, count_cell(run.num_ranks), time_cell(run.batch_s), count_cell(run.speed_up, 2),
            share_cell(run.efficiency), share_cell(run.sync_share), TableCell(f"{run.loss_difference:.1e}",
                                                                            run.loss_difference),
        )
        for file, comparison in verdict.contents.comparisons.items()
        for run in comparison.runs
    ]  # fmt: skip
    headings = ("file", "run", "ranks", "a batch", "speed-up", "efficiency", "exposed communication", "loss off by")
    return table("trainings", "One process beside several", headings, rows)


def _runs(verdict: Verdict) -> str:
    contents = verdict.contents
    rows: list[Row] = []
    for folder in dict.fromkeys((*contents.logs, *contents.sessions)):
        session, log = contents.sessions.get(folder), contents.logs.get(folder)
        last = log.entries[-1] if log else None
        figures = session.evaluation.items() if session else ()
        rows.append((
            folder,
            session.task if session else "-",
            session.strategy if session else "-",
            count_cell(session.num_ranks if session else None),
            count_cell(last.step if last else None),
            count_cell(last.loss if last else None, 4),
            count_cell(last.samples_per_s if last else None),
            share_cell(last.sync_share if last else None),
            ", ".join(f"{name} {value:.4g}" for name, value in figures) or "-",
        ))  # fmt: skip
    headings = (
        "run",
        "task",
        "strategy",
        "ranks",
        "steps",
        "last loss",
        "samples/s",
        "exposed communication",
        "held-out data",
    )
    return table("runs", "Training runs", headings, rows)


def _winners(verdict: Verdict) -> str:
    rows: list[Row] = []
    for file, sweep in verdict.contents.sweeps.items():
        for (network, num_ranks, size), winner in sweep.winners().items():
            cell = winner.cell
            busbw = busbw_bytes_per_s(Collective(cell.collective), num_ranks, size, cell.time_s or 0.0)
            rows.append((
                file, network, count_cell(num_ranks), size_cell(size), cell.algorithm, time_cell(cell.time_s),
                count_cell(winner.over_ring, 2), rate_cell(busbw),
            ))  # fmt: skip
    headings = ("file", "network", "ranks", "size", "fastest", "time", "times as fast as the ring", "busbw")
    return table("winners", "The fastest of sweeps", headings, rows)


def _origins(verdict: Verdict) -> str:
    """Each file with its kind and what it notes of where it comes from."""
    contents = verdict.contents
    known: list[tuple[str, str, dict[str, Any]]] = []
    known += [(name, "measurements", m.provenance) for name, m in contents.measurements.items()]
    known += [(name, "main job", job.measurements.provenance) for name, job in contents.jobs.items()]
    known += [(name, "step profile", profile.provenance) for name, profile in contents.profiles.items()]
    known += [(name, "sweep", sweep.provenance) for name, sweep in contents.sweeps.items()]
    known += [(name, "trainers compare", c.provenance) for name, c in contents.comparisons.items()]
    known += [(f"{name}/result.json", "training run", s.provenance) for name, s in contents.sessions.items()]
    known += [(f"{name}/log.jsonl", "training log", {}) for name in contents.logs]
    known += [(name, "network", {"machine": c.source}) for name, c in contents.networks.items()]
    known += [(name, "comparison", {}) for name in contents.cells]
    known += [(name, "simulated collective", {}) for name in contents.simulated]
    known += [(name, "predicted step with DDP", {}) for name in contents.predicted]
    rows: list[Row] = [(name, kind, *_noted(where)) for name, kind, where in known]
    headings = ("file", "kind", "machine", "cores", "date", "versions", "command")
    return table("files", "Where this comes from", headings, rows)


def _noted(where: dict[str, Any]) -> tuple[str, ...]:
    versions = [f"{name} {where[name]}" for name in ("ringsim", "torch", "python") if where.get(name)]
    noted = [str(where.get(name, "-")) for name in ("machine", "cores", "date")]
    return (*noted, ", ".join(versions) or "-", str(where.get("command", "-")))
