"""`Point`: a predicted and a measured time, from which docs/accuracy.png is drawn."""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from ringsim.calibration import ComparedCase, Timing
from ringsim.files import Record, atomic_file, decode, naming_place, read_text, values

HKBU = "GPU cluster hkbu"  # as many times as all other clusters together, of one repository
PLACES = (
    "GPU cluster",
    HKBU,
    "CPU cluster",
    "testbed",
    "loopback",
    "shared memory",
    "training step",
    "whole program",
    "published step",
)
_Seconds = Annotated[float, values.number(sys.float_info.min, unit="seconds")]  # both axes are logarithmic


class Point(Record, frozen=True):
    """place: of the measurement. case: the log, collective, strategy or program; empty in older files.

    Times are in seconds.
    """

    place: Annotated[str, values.one_of(*PLACES)]
    case: str
    predicted_s: _Seconds
    measured_s: _Seconds

    @property
    def error(self) -> float:
        """Absolute relative error of the predicted time."""
        return abs(self.predicted_s / self.measured_s - 1)


def points_of(place: str, title: str, cases: Sequence[ComparedCase]) -> list[Point]:
    """Return the points of the predicted cases. title: of the run or log."""
    return [
        Point(place, f"{title}: {_told(compared.case)}", compared.predicted_s, compared.case.measured_s)
        for compared in cases
        if compared.predicted_s is not None
    ]


def _told(case: Timing) -> str:
    return f"{case.call.collective} {case.algorithm}, {case.call.num_ranks} ranks, {case.call.size_bytes} B"


COLUMNS = list(Point.__struct_fields__)


def write_points(path: Path, points: Sequence[Point]) -> None:
    """Write a line for each point. Raises OSError."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(
        (point.place, point.case, f"{point.predicted_s:.4g}", f"{point.measured_s:.4g}") for point in points
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.getvalue().encode())


def read_points(path: Path) -> list[Point]:
    """Read a file of `write_points`. Raises ValueError, naming the line, for other content."""
    first, *rows = [*csv.reader(read_text(path).splitlines())] or [[]]
    if first != COLUMNS:
        raise ValueError(f"{path}: the first line is {','.join(first)!r}: must be {','.join(COLUMNS)!r}")
    points = []
    for line, row in enumerate(rows, start=2):
        with naming_place(f"{path}, line {line}"):
            if len(row) != len(COLUMNS):
                raise ValueError(f"has {len(row)} values: must have {len(COLUMNS)}")
            points.append(decode(Point, dict(zip(COLUMNS, [*row[:2], *map(float, row[2:])], strict=True))))
    return points
