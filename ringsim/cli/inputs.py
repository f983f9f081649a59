"""The inputs of `calibrate` and `compare`: a measurements file, or logs of other people's benchmarks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import click

from ringsim.calibration import TimedCase, cases_of_measurements, cases_of_tables, num_hosts
from ringsim.cli.options import Command
from ringsim.console import FILE, IntRange, Quantity
from ringsim.files import naming_place
from ringsim.measurements import Measurements, read_logs
from ringsim.network import Nics
from ringsim.units import parse_rate, whole_number

COUNT = IntRange(1, 2**20)


def parse_nics(text: str) -> Nics:
    """Return the NICs of 4x200Gbit/s, or 25GB/s for one. Raises ValueError for anything else."""
    count, times, rate = text.rpartition("x")
    num_nics = whole_number(count.strip()) if times else 1
    if not num_nics:
        raise ValueError(f"{text!r} is not a number of NICs and their bandwidth: write it as 4x200Gbit/s")
    try:
        return Nics(bandwidth_bytes_per_s=parse_rate(rate), count=num_nics)
    except ValueError as error:
        raise ValueError(f"{error}; for several NICs as 4x200Gbit/s") from None


NICS = Quantity("nics", parse_nics)


@dataclass(frozen=True, slots=True)
class Timings:
    """The contents of the files: cases, and the measurements if they were such files."""

    cases: tuple[TimedCase, ...]
    files: tuple[Path, ...]
    measurements: tuple[Measurements, ...] = ()


def timings_options(command: Command) -> Command:
    """Adds the files, and the options for what logs may leave out; the command gets `timings`."""

    @click.argument("files", nargs=-1, required=True, type=FILE)
    @click.option("--nodes", type=COUNT, help="A log that does not tell has so many hosts.")
    @click.option("--ranks-per-node", type=COUNT, help="Each host of such a log has so many ranks.")
    @wraps(command)
    def with_timings(*, files: tuple[Path, ...], nodes: int | None, ranks_per_node: int | None, **rest: object) -> None:
        command(timings=read_timings(files, nodes, ranks_per_node), **rest)

    return with_timings


def read_timings(files: Sequence[Path], num_nodes: int | None, ranks_per_node: int | None) -> Timings:
    """Return the timings of measurements or logs, told apart by how they begin.

    Raises ValueError for what is neither or both, OSError for what cannot be read.
    """
    are_json = [_is_json(path) for path in files]
    if not any(are_json):
        return Timings(tuple(cases_of_tables(read_logs(files, num_nodes, ranks_per_node))), tuple(files))
    if not all(are_json):
        one, other = files[are_json.index(True)], files[are_json.index(False)]
        raise ValueError(f"{one}: is a measurements file, {other} is not: give either measurements or logs")
    loaded = tuple(Measurements.load(path) for path in files)
    cases = [
        case
        for path, measurements in zip(files, loaded, strict=True)
        for case in cases_of_measurements(measurements, num_nodes or _num_hosts(measurements, path), str(path))
    ]
    return Timings(tuple(cases), tuple(files), loaded)


def _num_hosts(measurements: Measurements, path: Path) -> int:
    with naming_place(path):
        return num_hosts(measurements)


def _is_json(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(200).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
