"""Calibrations and comparisons of predictions with measurements, as text."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple
from typing import Any

from ringsim import calibration
from ringsim.estimates import INSIDE, NOT_BOUNDED, SURE
from ringsim.files import finite_or_none
from ringsim.report import table as cells
from ringsim.text_table import WIDTH, align_columns, first_named, wrap_text
from ringsim.units import format_rate, format_size, format_time, plural

_INTERVAL, _INSIDE = f"{100 * SURE:.0f} % interval", f"{100 * INSIDE:.0f} %"


def format_fit(fit: calibration.LogFit, wide: bool = False) -> str:
    """Return parameters and residuals; wide: with the collectives, ranks and sizes behind each parameter."""
    width = None if wide else WIDTH
    rows = [("parameter", "value", _INTERVAL, "seen in")]
    for fitted in fit.parameters:
        seen = _seen(fitted) if wide or not fitted.seen_in else plural(len(fitted.seen_in), "timing")
        value, low, high = (_shown(fitted.name, number) for number in (fitted.value, fitted.low, fitted.high))
        between = f"{low} .. {high}" if fitted.is_bounded else NOT_BOUNDED
        rows.append((fitted.name, value, between, seen))
    errors = list(zip(map(_case, fit.cases), fit.errors, strict=True))
    method = (
        "intervals: Laplace's approximation of the posterior, widened where the residuals exceed the expected noise"
    )
    notes = [method, "", *_residuals(f"fitted to {len(errors)} timings", errors)]
    shares_hosts = any(case.call.num_ranks > case.call.num_nodes for case in fit.cases)
    if shares_hosts and math.isinf(fit.cluster.spec.host.link.bandwidth_bytes_per_s):
        notes.append("no log of one host alone: within a host a byte takes no time on this network; add such a log")
    notes += filter(None, [calibration.undetermined_warning(fit.parameters, fit.cases)])
    return "\n".join([*align_columns(rows, width=width), *(wrap_text(note, width, "  ") for note in notes)])


def _residuals(fitted: str, errors: Sequence[tuple[str, float]]) -> list[str]:
    errors = sorted(errors, key=lambda pair: -abs(pair[1]))
    (worst, error), typical = errors[0], statistics.median(abs(error) for _, error in errors)
    lines = [f"{fitted}: median |residual| {typical:.1%}, largest {error:+.1%} ({worst})"]
    beyond = [f"{name} {error:+.0%}" for name, error in errors if abs(error) > calibration.MISFIT]
    if beyond:
        named = "; ".join(first_named(beyond))
        lines.append(f"the model does not fit {len(beyond)} of them within {calibration.MISFIT:.0%}: {named}")
    return lines


def _shown(name: str, value: float) -> str:
    if "bandwidth" in name:
        return format_rate(value)
    if name.endswith(("start", "latency")) and name not in ("message_start", "tree_latency"):
        return format_time(value)
    return f"{value:.3g}"


def _seen(parameter: calibration.FittedParameter) -> str:
    if not parameter.seen_in:
        is_elsewhere = parameter.name in ("ring_fill", "message_share")
        return "none: as on other clusters" if is_elsewhere else "none: NCCL's own model"
    sizes: dict[tuple[str, int, int], list[int]] = {}
    for test, size_bytes, num_ranks, num_nodes, *_ in (case.call for case in parameter.seen_in):
        sizes.setdefault((test, num_ranks, num_nodes), []).append(size_bytes)
    return ", ".join(
        f"{test} n={ranks} h={nodes} {format_size(min(some))}" + (f"-{format_size(max(some))}" if len(some) > 1 else "")
        for (test, ranks, nodes), some in sorted(sizes.items())
    )


def _case(case: calibration.Timing) -> str:
    ranks = f"on {plural(case.call.num_ranks, 'rank')} of {plural(case.call.num_nodes, 'host')}"
    return f"{case.call.collective} {format_size(case.call.size_bytes)} {ranks}"


def format_probe_fit(fit: calibration.ProbeFit, wide: bool = False) -> str:
    """Return parameters and residuals; wide: with the probes of each parameter."""
    width = None if wide else WIDTH
    rows: list[tuple[str, ...]] = [("parameter", "value", _INTERVAL, *(["probes"] if wide else []))]
    for name, estimate in fit.parameters.items():
        value, *ends = (format_value(name, number) for number in astuple(estimate))
        between = "" if math.isinf(estimate.low) else " .. ".join(ends)
        rows.append((name, value, between, *([fit.probes[name]] if wide else [])))
    lines = [*align_columns(rows), "intervals: bootstrap over the blocks of each probe", ""]
    if not fit.residuals:
        return "\n".join([*lines, "one rank: there is nothing to send"])
    errors = [(f"{probe.kind} {format_size(probe.size_bytes)}", residual) for probe, residual in fit.residuals]
    return "\n".join([*lines, *(wrap_text(note, width, "  ") for note in _residuals("shift probes", errors))])


def fit_dict(fit: calibration.LogFit) -> dict[str, Any]:
    """Return a fit for JSON."""
    return {
        "undecided": calibration.undetermined_warning(fit.parameters, fit.cases) or None,
        "parameters": [
            {"name": fitted.name, "value": fitted.value, "low": fitted.low, "high": fitted.high,
             "num_cells": len(fitted.seen_in)}
            for fitted in fit.parameters
        ],
        "cells": [
            {"collective": case.call.collective, "size_bytes": case.call.size_bytes, "num_ranks": case.call.num_ranks,
             "num_nodes": case.call.num_nodes, "residual": error}
            for case, error in zip(fit.cases, fit.errors, strict=True)
        ],
    }  # fmt: skip


def probe_fit_dict(fit: calibration.ProbeFit) -> dict[str, Any]:
    """Return a fit for JSON; None: an infinite rate."""
    return {
        "parameters": [
            finite_or_none({"name": name, **asdict(estimate), "probes": fit.probes[name]})
            for name, estimate in fit.parameters.items()
        ],
        "probes": [
            {"kind": probe.kind, "size_bytes": probe.size_bytes, "residual": residual}
            for probe, residual in fit.residuals
        ],
    }  # fmt: skip


def format_value(name: str, value: float) -> str:
    """Return a parameter with its unit."""
    if math.isinf(value):
        return "no limit"
    if name.endswith("share"):
        return f"{value:.1%}"
    if name.endswith("burst"):
        return format_size(round(value)) if value else "none"
    return format_rate(value) if name.endswith("bandwidth") else format_time(value)


_ALIKE = 0.2  # wider intervals show both ends, as N % longer is then not N % shorter


def format_comparison(comparison: calibration.Comparison, wide: bool = False) -> str:
    """Return the cases and the summary by size class; wide: with the algorithm in every row."""
    width = None if wide else WIDTH
    lines = comparison_table(comparison).lines() if wide else _rows_by_algorithm(comparison)
    notes = [wrap_text(note, width, "  ") for note in _notes(comparison)]
    return "\n".join([f"network {comparison.network}", *lines, "", _summary(comparison), *notes])


def comparison_table(comparison: calibration.Comparison, most_rows: int | None = None) -> cells.DataTable:
    """Return one row per case."""
    rows = [(*_name(compared), *_row(comparison, compared)) for compared in comparison.cases[:most_rows]]
    return cells.DataTable(("collective", "algorithm", *_columns(comparison)), rows)


def _columns(comparison: calibration.Comparison) -> Sequence[str]:
    between = (_INSIDE,) if comparison.has_intervals else ()
    return "size", "ranks", "hosts", "predicted", *between, "measured", "error", "spread", ""


def _rows_by_algorithm(comparison: calibration.Comparison) -> Iterator[str]:
    rows = [_row(comparison, compared) for compared in comparison.cases]
    heading, *lines = cells.DataTable(_columns(comparison), rows).lines()
    by_name: dict[str, list[str]] = {}
    for compared, log, line in zip(comparison.cases, comparison.logs(), lines, strict=True):
        name = " ".join(_name(compared)) + (f", {log}" if log else "")
        by_name.setdefault(name, []).append(line)
    for name, own in by_name.items():
        yield from ("", name, heading, *own)


def _name(compared: calibration.ComparedCase) -> tuple[str, str]:
    return compared.case.call.collective, compared.case.algorithm


def _row(comparison: calibration.Comparison, compared: calibration.ComparedCase) -> cells.Row:
    case, call, error = compared.case, compared.case.call, compared.error
    sizes = cells.size_cell(call.size_bytes), cells.count_cell(call.num_ranks), cells.count_cell(call.num_nodes)
    predicted, measured = cells.time_cell(compared.predicted_s), cells.time_cell(case.measured_s)
    how = ("used  " if compared.used_in_calibration else "") + (compared.how if error is not None else "")
    between = [_width_cell(compared)] if comparison.has_intervals else []
    return *sizes, predicted, *between, measured, cells.error_cell(error, 1), cells.share_cell(compared.spread, 1), how


def _width_cell(compared: calibration.ComparedCase) -> cells.TableCell:
    if compared.interval is None or compared.predicted_s is None:
        return cells.EMPTY_CELL
    if not compared.interval.is_bounded:
        return cells.TableCell(NOT_BOUNDED, math.inf)
    low_s, high_s = compared.interval.ends
    shorter, longer = compared.predicted_s / low_s - 1, high_s / compared.predicted_s - 1
    width = max(shorter, longer)
    if f"{shorter:.0%}" == f"{longer:.0%}" and width < _ALIKE:
        return cells.TableCell(f"±{width:.0%}", width)
    return cells.TableCell(f"{1 / (1 + shorter) - 1:+.0%} {longer:+.0%}", width)


def _summary(comparison: calibration.Comparison) -> str:
    rows = [
        (summary["sizes"], str(summary["num_cells"]), *(cells.share_cell(summary[of], 1) for of in ("median", "p95")),
         *([cells.share_cell(summary["inside"])] if comparison.has_intervals else []),
         "used in the calibration" if summary["used_in_calibration"] else "held out")
        for summary in comparison.summary()
    ]  # fmt: skip
    inside = [f"in their {_INSIDE}"] if comparison.has_intervals else []
    return cells.DataTable(("sizes", "cells", "median |error|", "95 % below", *inside, ""), rows).text()


def _notes(comparison: calibration.Comparison) -> list[str]:
    missing: dict[tuple[str, str, str], int] = {}
    for compared in comparison.cases:
        if compared.predicted_s is None:
            key = compared.case.call.collective, compared.case.algorithm, compared.how
            missing[key] = missing.get(key, 0) + 1
    lines = [
        f"not predicted: {collective} {algorithm}, {plural(number, 'cell')}: {why}"
        for (collective, algorithm, why), number in missing.items()
    ]
    return [*lines, *filter(None, [comparison.extrapolation()])]
