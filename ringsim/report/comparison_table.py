"""A `Comparison` as text for people, and as CSV."""

import csv
import io

from ringsim.calibration import ComparedCase, Comparison
from ringsim.text_table import align_columns
from ringsim.units import format_size, format_time

_COLUMNS = ("collective", "algorithm", "size", "ranks", "hosts", "predicted", "measured", "error", "spread", "")
_ALIGNMENT = "llrrrrrrrl"


def format_comparison(comparison: Comparison) -> str:
    """Returns a table with a row for each case, then the summary by size class."""
    rows = [_COLUMNS, *(_row(compared) for compared in comparison.cases)]
    lines = align_columns(rows, _ALIGNMENT)
    return "\n".join([f"network {comparison.network}", *lines, "", format_summary(comparison), *_notes(comparison)])


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
        case.collective,
        case.algorithm,
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
        f"not predicted: {collective} {algorithm}, {number} cells: {why}"
        for (collective, algorithm, why), number in missing.items()
    ]
