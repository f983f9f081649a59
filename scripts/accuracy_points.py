"""`Point`: a predicted and a measured time, as scripts that judge predictions keep them for docs/accuracy.png."""

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from ringsim.files import atomic_file, check, naming_place, read_text, values

PLACES = ("GPU cluster", "testbed", "loopback", "shared memory", "training step")
TIME_S = values.number(sys.float_info.min, unit="seconds")  # both axes of the picture are logarithmic


@dataclass(frozen=True, slots=True)
class Point:
    """place: where it was measured; times in seconds. Raises ValueError for another place, and times that are not."""

    place: Annotated[str, values.one_of(*PLACES)]
    predicted_s: Annotated[float, TIME_S]
    measured_s: Annotated[float, TIME_S]

    def __post_init__(self) -> None:
        check(self)

    @property
    def error(self) -> float:
        """The predicted time over the measured one, less 1, without its sign."""
        return abs(self.predicted_s / self.measured_s - 1)


COLUMNS = [field.name for field in fields(Point)]


def write_points(path: Path, points: Sequence[Point]) -> None:
    """Write a line for each point. Raises OSError."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows((point.place, f"{point.predicted_s:.4g}", f"{point.measured_s:.4g}") for point in points)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.getvalue().encode())


def read_points(path: Path) -> list[Point]:
    """Return what `write_points` wrote. Raises ValueError, with the line, for anything else."""
    first, *rows = [*csv.reader(read_text(path).splitlines())] or [[]]
    if first != COLUMNS:
        raise ValueError(f"{path}: the first line is {','.join(first)!r}: must be {','.join(COLUMNS)!r}")
    points = []
    for line, row in enumerate(rows, start=2):
        with naming_place(f"{path}, line {line}"):
            if len(row) != len(COLUMNS):
                raise ValueError(f"has {len(row)} values: must have {len(COLUMNS)}")
            points.append(Point(row[0], float(row[1]), float(row[2])))
    return points
