"""`Point`: a predicted and a measured time, as scripts that judge predictions keep them for docs/accuracy.png."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ringsim.files import atomic_file, read_text


class Point(NamedTuple):
    """place: where it was measured, one of few; times in seconds."""

    place: str
    predicted_s: float
    measured_s: float


def write_points(path: Path, points: Sequence[Point]) -> None:
    """Write a line for each point. Raises OSError."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(Point._fields)
    table.writerows((point.place, f"{point.predicted_s:.4g}", f"{point.measured_s:.4g}") for point in points)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.getvalue().encode())


def read_points(path: Path) -> list[Point]:
    """Return what `write_points` wrote."""
    rows = csv.DictReader(io.StringIO(read_text(path)))
    return [Point(row["place"], float(row["predicted_s"]), float(row["measured_s"])) for row in rows]
