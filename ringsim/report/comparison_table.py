"""A `Comparison` as text for people, and as CSV."""

import csv
import io
from collections.abc import Iterator

from ringsim.calibration import ComparedCase, Comparison
from ringsim.text_table import WIDTH, align_columns, wrap_text
from ringsim.units import format_size, format_time, plural

_COLUMNS = ("size", "ranks", "hosts", "predicted", "measured", "error", "spread", "")
_ALIGNMENT = "rrrrrrrl"


def format_comparison(comparison: Comparison, wide: bool = False) -> str:
    """Returns a row for each case, below the name of its algorithm, then the summary by size class.

    wide: with the name in every row instead.
    """
    width = None if wide else WIDTH
    lines = _wide_rows(comparison) if wide else _rows_by_algorithm(comparison)
    notes = [wrap_text(note, width, "  ") for note in _notes(comparison)]
    return "\n".join([f"network {comparison.network}", *lines, "", format_summary(comparison), *notes])


def _wide_rows(comparison: Comparison) -> list[str]:
    named = [(*_name(compared), *_row(compared)) for compared in comparison.cases]
    return align_columns([("collective", "algorithm", *_COLUMNS), *named], f"ll{_ALIGNMENT}")


def _rows_by_algorithm(comparison: Comparison) -> Iterator[str]:
    """The rows of each algorithm, and of each log that others repeat, below its name, all aligned as one table."""
    heading, *lines = align_columns([_COLUMNS, *(_row(compared) for compared in comparison.cases)], _ALIGNMENT)
    by_name: dict[str, list[str]] = {}
    for compared, log, line in zip(comparison.cases, comparison.logs(), lines, strict=True):
        name = " ".join(_name(compared)) + (f", {log}" if log else "")
        by_name.setdefault(name, []).append(line)
    for name, rows in by_name.items():
        yield from ("", name, heading, *rows)


def _name(compared: ComparedCase) -> tuple[str, str]:
    return compared.case.collective, compared.case.algorithm


def format_summary(comparison: Comparison) -> str:
    """Returns a table of the median and 95th percentile of |error| by size class."""
    rows = [("sizes", "cells", "median |error|", "95 % below", "")]
    for summary in comparison.summary():
        used = "used in the calibration" if summary["used_in_calibration"] else "held out"
        errors = f"{summary['median']:.1%}", f"{summary['p95']:.1%}"
        rows.append((summary["sizes"], str(summary["num_cells"]), *errors, used))
    return "\n".join(align_columns(rows, "llrrl"))


def comparison_csv(comparison: Comparison) -> str:
    """Returns the cases as CSV with the fields of the JSON output."""
    text = io.StringIO()
    rows = [compared.as_dict() for compared in comparison.cases]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(compared: ComparedCase) -> tuple[str, ...]:
    case, error = compared.case, compared.error
    return (
        format_size(case.size_bytes),
        str(case.num_ranks),
        str(case.num_nodes),
        "-" if compared.predicted_s is None else format_time(compared.predicted_s),
        format_time(case.measured_s),
        "-" if error is None else f"{error:+.1%}",
        f"{compared.spread:.1%}",
        ("used  " if compared.used_in_calibration else "") + (compared.how if error is not None else ""),
    )


def _notes(comparison: Comparison) -> list[str]:
    """What is not predicted, and why, each once."""
    missing: dict[tuple[str, str, str], int] = {}
    for compared in comparison.cases:
        if compared.predicted_s is None:
            key = compared.case.collective, compared.case.algorithm, compared.how
            missing[key] = missing.get(key, 0) + 1
    return [
        f"not predicted: {collective} {algorithm}, {plural(number, 'cell')}: {why}"
        for (collective, algorithm, why), number in missing.items()
    ]
