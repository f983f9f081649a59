"""A calibration as text: each parameter, its interval and what it was seen in; and how well all fits."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ringsim.calibration import MISFIT, LogFit, ProbeFit, TimedCase
from ringsim.files import finite_or_none
from ringsim.measurements import Probe
from ringsim.text_table import WIDTH, align_columns, wrap_text
from ringsim.units import format_rate, format_size, format_time, plural

_SHOWN_MISFITS = 5


def format_fit(fit: LogFit, wide: bool = False) -> str:
    """Return the table of parameters of a fit to logs, and how well it reproduces them.

    wide: with the collectives, ranks and sizes in which each parameter was seen, instead of their number.
    """
    width = None if wide else WIDTH
    rows = [("parameter", "value", "95 % between", "seen in")]
    for fitted in fit.parameters:
        seen = _seen(fitted.seen_in) if wide or not fitted.seen_in else plural(len(fitted.seen_in), "timing")
        value, low, high = (_shown(fitted.name, number) for number in (fitted.value, fitted.low, fitted.high))
        rows.append((fitted.name, value, f"{low} .. {high}", seen))
    method = (
        "intervals: Laplace's approximation of the posterior, widened where the residuals exceed the expected noise"
    )
    notes = [method, "", *format_fit_statement(fit.cases, fit.errors), *_untold(fit)]
    return "\n".join([*align_columns(rows, width=width), *(wrap_text(note, width, "  ") for note in notes)])


def _untold(fit: LogFit) -> list[str]:
    """Return what no log tells, and the network therefore takes to cost nothing."""
    shares_hosts = any(case.num_ranks > case.num_nodes for case in fit.cases)
    if shares_hosts and math.isinf(fit.cluster.spec.host.link.bandwidth_bytes_per_s):
        return ["no log of one host alone: within a host a byte takes no time on this network; add such a log"]
    return []


def format_fit_statement(cases: Sequence[TimedCase], errors: Sequence[float]) -> list[str]:
    """Return lines on how well the network reproduces the timings it was fitted to, and which it does not."""
    sizes = [abs(error) for error in errors]
    worst = sorted(zip(sizes, range(len(errors)), strict=True), reverse=True)
    lines = [f"fitted to {len(cases)} timings: median |residual| {statistics.median(sizes):.1%}, "
             f"largest {worst[0][0]:.1%} ({_case(cases[worst[0][1]])})"]  # fmt: skip
    beyond = [index for size, index in worst if size > MISFIT]
    if beyond:
        named = "; ".join(f"{_case(cases[index])} {errors[index]:+.0%}" for index in beyond[:_SHOWN_MISFITS])
        more = f"; and {len(beyond) - _SHOWN_MISFITS} more" if len(beyond) > _SHOWN_MISFITS else ""
        lines.append(f"the model does not fit {len(beyond)} of them within {MISFIT:.0%}: {named}{more}")
    return lines


def _shown(name: str, value: float) -> str:
    if "bandwidth" in name:
        return format_rate(value)
    if name.endswith(("start", "latency")) and name not in ("message_start", "tree_latency"):
        return format_time(value)
    return f"{value:.3g}"


def _seen(cases: Sequence[TimedCase]) -> str:
    """Each collective with its ranks and the range of its sizes; nothing: where the value comes from instead."""
    if not cases:
        return "none: NCCL's own model"
    sizes: dict[tuple[str, int, int], list[int]] = {}
    for case in cases:
        sizes.setdefault((case.collective, case.num_ranks, case.num_nodes), []).append(case.size_bytes)
    return ", ".join(
        f"{test} n={ranks} h={nodes} {format_size(min(some))}" + (f"-{format_size(max(some))}" if len(some) > 1 else "")
        for (test, ranks, nodes), some in sorted(sizes.items())
    )


def _case(case: TimedCase) -> str:
    ranks = f"on {plural(case.num_ranks, 'rank')} of {plural(case.num_nodes, 'host')}"
    return f"{case.collective} {format_size(case.size_bytes)} {ranks}"


def format_probe_fit(fit: ProbeFit, wide: bool = False) -> str:
    """Return the table of parameters of a fit to probes, and how well it reproduces them.

    wide: with the probes that each parameter was fitted to.
    """
    width = None if wide else WIDTH
    rows: list[tuple[str, ...]] = [("parameter", "value", "95 % between", *(["probes"] if wide else []))]
    for name, value in fit.values.items():
        bounds = [format_value(name, bound) for bound in (fit.low[name], fit.high[name])]
        between = "" if math.isinf(fit.low[name]) else " .. ".join(bounds)
        rows.append((name, format_value(name, value), between, *([fit.probes[name]] if wide else [])))
    lines = [*align_columns(rows), "intervals: bootstrap over the blocks of each probe", ""]
    if not fit.residuals:
        return "\n".join([*lines, "one rank: there is nothing to send"])
    worst = max(fit.residuals, key=lambda pair: abs(pair[1]))
    typical = statistics.median(abs(residual) for _, residual in fit.residuals)
    text = f"shift probes: median |residual| {typical:.1%}, largest {worst[1]:+.1%} ({_probe(worst[0])})"
    lines.append(wrap_text(text, width, "  "))
    beyond = [f"{_probe(probe)} {residual:+.0%}" for probe, residual in fit.residuals if abs(residual) > MISFIT]
    if beyond:
        text = f"the model does not fit {len(beyond)} of them within {MISFIT:.0%}: {'; '.join(beyond)}"
        lines.append(wrap_text(text, width, "  "))
    return "\n".join(lines)


def fit_dict(fit: LogFit) -> dict[str, Any]:
    """Return a fit to logs for JSON."""
    return {
        "parameters": [
            {"name": fitted.name, "value": fitted.value, "low": fitted.low, "high": fitted.high,
             "num_cells": len(fitted.seen_in)}
            for fitted in fit.parameters
        ],
        "cells": [
            {"collective": case.collective, "size_bytes": case.size_bytes, "num_ranks": case.num_ranks,
             "num_nodes": case.num_nodes, "residual": error}
            for case, error in zip(fit.cases, fit.errors, strict=True)
        ],
    }  # fmt: skip


def probe_fit_dict(fit: ProbeFit) -> dict[str, Any]:
    """Return a fit to probes for JSON; an infinite rate becomes None."""
    return {
        "parameters": [
            finite_or_none({"name": name, "value": value, "low": fit.low[name], "high": fit.high[name],
                            "probes": fit.probes[name]})
            for name, value in fit.values.items()
        ],
        "probes": [
            {"kind": probe.kind, "size_bytes": probe.size_bytes, "residual": residual}
            for probe, residual in fit.residuals
        ],
    }  # fmt: skip


def format_value(name: str, value: float) -> str:
    """Return a parameter of a fit to probes with its unit."""
    if math.isinf(value):
        return "no limit"
    return format_rate(value) if name.endswith("bandwidth") else format_time(value)


def _probe(probe: Probe) -> str:
    return f"{probe.kind} {format_size(probe.size_bytes)}"
