"""A `Comparison` as text for people, and as CSV."""

import csv
import io

from ringsim.calibration import Compared, Comparison
from ringsim.text_table import align_columns
from ringsim.units import format_size, format_time

_COLUMNS = ("collective", "algorithm", "size", "ranks", "hosts", "predicted", "measured", "error", "spread", "")
_ALIGNMENT = "llrrrrrrrl"


def format_comparison(comparison: Comparison) -> str:
    """A row for each cell, then the summary by size class."""
    rows = [_COLUMNS, *(_row(each) for each in comparison.cells)]
    cells = align_columns(rows, _ALIGNMENT)
    return "\n".join([f"network {comparison.network}", *cells, "", format_summary(comparison), *_notes(comparison)])


def format_summary(comparison: Comparison) -> str:
    """Median and 95th percentile of |error| by size class."""
    rows = [("sizes", "cells", "median |error|", "95 % below", "")]
    for of in comparison.summary():
        used = "used in the calibration" if of["used_in_calibration"] else "held out"
        rows.append((of["sizes"], str(of["num_cells"]), f"{of['median']:.1%}", f"{of['p95']:.1%}", used))
    return "\n".join(align_columns(rows, "llrrl"))


def comparison_csv(comparison: Comparison) -> str:
    """The cells with the fields of the JSON output."""
    text = io.StringIO()
    rows = [each.as_dict() for each in comparison.cells]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(each: Compared) -> tuple[str, ...]:
    cell, error = each.cell, each.error
    return (
        cell.collective,
        cell.algorithm,
        format_size(cell.size_bytes),
        str(cell.num_ranks),
        str(cell.num_nodes),
        "-" if each.predicted_s is None else format_time(each.predicted_s),
        format_time(cell.measured_s),
        "-" if error is None else f"{error:+.1%}",
        f"{each.spread:.1%}",
        ("used  " if each.used_in_calibration else "") + (each.how if error is not None else ""),
    )


def _notes(comparison: Comparison) -> list[str]:
    """What is not predicted, and why, each once."""
    missing: dict[tuple[str, str, str], int] = {}
    for each in comparison.cells:
        if each.predicted_s is None:
            key = each.cell.collective, each.cell.algorithm, each.how
            missing[key] = missing.get(key, 0) + 1
    return [
        f"not predicted: {collective} {algorithm}, {number} cells: {why}"
        for (collective, algorithm, why), number in missing.items()
    ]
