"""The inputs of `calibrate` and `compare`: a measurements file, or logs of other benchmarks."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
from click import argument, option

from ringsim.calibration import Timing, cases_of_measurements, cases_of_tables, num_hosts
from ringsim.cli.options import together
from ringsim.console import FILE, IntRange, Quantity
from ringsim.files import naming_place
from ringsim.measurements import (
    NCCL_ALGORITHMS,
    NCCL_PROTOCOLS,
    NOT_KNOWN,
    LogShape,
    Measurements,
    NcclSettings,
    read_logs,
)
from ringsim.network import Nics
from ringsim.text_table import MAX_NAMED
from ringsim.units import parse_rate, plural, whole_number

COUNT = IntRange(1, 2**20)
_SHAPED = re.compile(r"(.+):((?:nodes|ranks-per-node)=.*)")


def parse_nics(text: str) -> Nics:
    """Parse NICs such as 4x200Gbit/s, or 25GB/s for one. Raises ValueError otherwise."""
    count, times, rate = text.rpartition("x")
    num_nics = whole_number(count.strip()) if times else 1
    if not num_nics:
        raise ValueError(f"{text!r} is not a number of NICs and their bandwidth: write it as 4x200Gbit/s")
    try:
        return Nics(bandwidth_bytes_per_s=parse_rate(rate), count=num_nics)
    except ValueError as error:
        raise ValueError(f"{error}; for several NICs as 4x200Gbit/s") from None


NICS = Quantity("nics", parse_nics)


def _setting(names: Sequence[str]) -> Callable[[str], str]:
    """Return the parser of an NCCL setting: names, or excluded names after ^."""

    def parse(text: str) -> str:
        unknown = [name for name in text.removeprefix("^").split(",") if name.lower() not in names]
        if unknown:
            example = f"{names[0]},{names[1]} or ^{names[1]}"
            raise ValueError(f"{text!r}: {unknown[0]!r} must be one of {', '.join(names)}: write it as {example}")
        return text.lower()

    return parse


class GivenFile(NamedTuple):
    """A file, and its hosts and ranks by the user."""

    path: Path
    shape: LogShape


class GivenFileType(click.ParamType[GivenFile]):
    """A file with optional hosts and ranks, as in LOG:nodes=2,ranks-per-node=4."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> GivenFile:
        shaped = None if Path(value).exists() else _SHAPED.fullmatch(value)
        path = Path(os.fsdecode(FILE.convert(shaped[1] if shaped else value, param, ctx)))
        counts = [part.partition("=") for part in shaped[2].split(",")] if shaped else []
        shape = {name: whole_number(count) for name, _, count in counts}
        is_known = shape.keys() <= {"nodes", "ranks-per-node"} and len(shape) == len(counts)
        if not is_known or None in shape.values() or 0 in shape.values():
            self.fail(f"{value}: write it as {path}:nodes=2,ranks-per-node=4", param, ctx)
        return GivenFile(path, LogShape(shape.get("nodes"), shape.get("ranks-per-node")))


@dataclass(frozen=True, slots=True)
class Timings:
    """The cases of the files, and the measurements if any.

    read: a line per table of a log. left_out: a line per skipped row.
    """

    cases: tuple[Timing, ...]
    files: tuple[Path, ...]
    measurements: tuple[Measurements, ...] = ()
    read: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def readings(self) -> dict[str, list[str]]:
        """The lines on logs, for JSON."""
        return {"read": list(self.read), "left_out": list(self.left_out)} if self.read else {}

    def under_readings(self, text: str) -> str:
        return "\n".join([*(f"read {line}" for line in self.read), *([""] if self.read else []), text])


def _timings(
    files: tuple[GivenFile, ...],
    nodes: int | None,
    ranks_per_node: int | None,
    nccl_algo: str | None,
    nccl_proto: str | None,
) -> Timings:
    settings = NOT_KNOWN._replace(algorithms=nccl_algo or "", protocols=nccl_proto or "")
    timings = read_timings(files, LogShape(nodes, ranks_per_node), settings)
    for line in timings.left_out[:MAX_NAMED]:
        click.echo(f"left out: {line}", err=True)
    if (more := len(timings.left_out) - MAX_NAMED) > 0:
        click.echo(f"left out: {plural(more, 'more row')}", err=True)
    return timings


timings_options = together(
    "timings",
    _timings,
    argument("files", nargs=-1, required=True, type=GivenFileType()),
    option("--nodes", type=COUNT, help="Number of hosts, for logs without a list of ranks; for one log, LOG:nodes=2."),
    option(
        "--ranks-per-node", type=COUNT, help="Ranks per host, for such logs; for one log, LOG:nodes=2,ranks-per-node=4."
    ),
    option(
        "--nccl-algo",
        type=Quantity("names", _setting(NCCL_ALGORITHMS)),
        help="Value of NCCL_ALGO, for logs that do not contain it, such as ring.",
    ),
    option(
        "--nccl-proto",
        type=Quantity("names", _setting(NCCL_PROTOCOLS)),
        help="Value of NCCL_PROTO, for logs that do not contain it, such as simple.",
    ),
)


def read_timings(files: Sequence[GivenFile], of_all: LogShape, settings: NcclSettings) -> Timings:
    """Return the timings of measurements or logs, distinguished by their first bytes.

    of_all, settings: for logs without them. Raises ValueError for other or mixed files, OSError for unreadable ones.
    """
    paths, shapes = tuple(given.path for given in files), set(files)
    if len(shapes) > len(set(paths)):
        twice = next(path for path in paths if sum(given.path == path for given in shapes) > 1)
        raise ValueError(f"{twice}: is given twice, with different hosts or ranks: give it once")
    are_json = [_is_json(path) for path in paths]
    if not any(are_json):
        tables = read_logs(paths, *of_all, dict(files))
        left_out = tuple(line for table in tables for line in table.left_out)
        read = tuple(table.reading for table in tables if table.rows)
        if not (log_cases := tuple(cases_of_tables(tables, settings))):
            raise ValueError(read[0])
        return Timings(log_cases, paths, (), read, left_out)
    if not all(are_json):
        one, other = paths[are_json.index(True)], paths[are_json.index(False)]
        raise ValueError(f"{one}: is a measurements file, {other} is not: give either measurements or logs")
    if settings != NOT_KNOWN:
        raise ValueError(f"{paths[0]}: is a measurements file: --nccl-algo and --nccl-proto are for logs of NCCL")
    given = next((given.path for given in files if given.shape != LogShape()), paths[0] if of_all != LogShape() else "")
    if given:
        raise ValueError(f"{given}: is a measurements file, which tells its ranks and hosts: leave out nodes and "
                         "ranks-per-node, which are for logs")  # fmt: skip
    loaded = tuple(Measurements.load(path) for path in paths)
    cases: list[Timing] = []
    for path, measurements in zip(paths, loaded, strict=True):
        with naming_place(path):
            hosts = num_hosts(measurements)
        cases += cases_of_measurements(measurements, hosts, str(path))
    return Timings(tuple(cases), paths, loaded)


def _is_json(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seekable():
            raise ValueError(f"{path}: is a pipe, which cannot be read twice: write it to a file, and give that")
        return file.read(200).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
