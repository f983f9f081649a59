"""A `Comparison` as text for people."""

from collections.abc import Iterator

from ringsim.calibration import ComparedCase, Comparison
from ringsim.report.table import DataTable, Row, count_cell, error_cell, share_cell, size_cell, time_cell
from ringsim.text_table import WIDTH, wrap_text
from ringsim.units import plural

_COLUMNS = ("size", "ranks", "hosts", "predicted", "measured", "error", "spread", "")


def format_comparison(comparison: Comparison, wide: bool = False) -> str:
    """Return a row for each case, below the name of its algorithm, then the summary by size class.

    wide: with the name in every row instead.
    """
    width = None if wide else WIDTH
    lines = comparison_table(comparison).lines() if wide else _rows_by_algorithm(comparison)
    notes = [wrap_text(note, width, "  ") for note in _notes(comparison)]
    return "\n".join([f"network {comparison.network}", *lines, "", _summary(comparison), *notes])


def comparison_table(comparison: Comparison, most_rows: int | None = None) -> DataTable:
    """Return a row for each case, the name of its algorithm first."""
    cases = comparison.cases[:most_rows]
    return DataTable(
        ("collective", "algorithm", *_COLUMNS), [(*_name(compared), *_row(compared)) for compared in cases]
    )


def _rows_by_algorithm(comparison: Comparison) -> Iterator[str]:
    """Yield the rows of each algorithm, and of each log that others repeat, below its name, aligned as one table."""
    heading, *lines = DataTable(_COLUMNS, [_row(compared) for compared in comparison.cases]).lines()
    by_name: dict[str, list[str]] = {}
    for compared, log, line in zip(comparison.cases, comparison.logs(), lines, strict=True):
        name = " ".join(_name(compared)) + (f", {log}" if log else "")
        by_name.setdefault(name, []).append(line)
    for name, rows in by_name.items():
        yield from ("", name, heading, *rows)


def _name(compared: ComparedCase) -> tuple[str, str]:
    return compared.case.collective, compared.case.algorithm


def _row(compared: ComparedCase) -> Row:
    case, error = compared.case, compared.error
    sizes = size_cell(case.size_bytes), count_cell(case.num_ranks), count_cell(case.num_nodes)
    times = time_cell(compared.predicted_s), time_cell(case.measured_s)
    how = ("used  " if compared.used_in_calibration else "") + (compared.how if error is not None else "")
    return *sizes, *times, error_cell(error, 1), share_cell(compared.spread, 1), how


def _summary(comparison: Comparison) -> str:
    """Return a table of the median and 95th percentile of |error| by size class."""
    rows = [
        (summary["sizes"], str(summary["num_cells"]), share_cell(summary["median"], 1), share_cell(summary["p95"], 1),
         "used in the calibration" if summary["used_in_calibration"] else "held out")
        for summary in comparison.summary()
    ]  # fmt: skip
    return DataTable(("sizes", "cells", "median |error|", "95 % below", ""), rows).text()


def _notes(comparison: Comparison) -> list[str]:
    """Return what is not predicted, and why, each once."""
    missing: dict[tuple[str, str, str], int] = {}
    for compared in comparison.cases:
        if compared.predicted_s is None:
            key = compared.case.collective, compared.case.algorithm, compared.how
            missing[key] = missing.get(key, 0) + 1
    return [
        f"not predicted: {collective} {algorithm}, {plural(number, 'cell')}: {why}"
        for (collective, algorithm, why), number in missing.items()
    ]
