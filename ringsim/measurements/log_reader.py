"""`read_logs`: the tables of logs of nccl-tests, OSU and Gloo."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ringsim.files import parsed, values
from ringsim.measurements.log_lines import GIVEN, UNKNOWN_SHAPE, LogShape, LogTable, Shape, read_lines
from ringsim.measurements.measurements import TESTS
from ringsim.measurements.nccl_tests import ELEMENT_BYTES, NCCL_HEADER, NcclTests
from ringsim.measurements.osu_gloo import GLOO_HEADER, OSU_TITLE, Gloo, Osu
from ringsim.units import plural


def read_logs(
    paths: Iterable[str | os.PathLike[str]],
    num_nodes: int | None = None,
    ranks_per_node: int | None = None,
    shapes: Mapping[str | os.PathLike[str], LogShape] | None = None,
) -> tuple[LogTable, ...]:
    """Return the tables of all files.

    num_nodes, ranks_per_node: of logs without a list of ranks. shapes: of single logs; they override the log.

    Raises ValueError for other files, wrong results, contradictory rows, and unknown ranks or hosts; OSError for an
    unreadable file.
    """
    of_all = LogShape(num_nodes, ranks_per_node)
    tables = tuple(
        table for path in paths for table in read_log(Path(path), (shapes or {}).get(path, UNKNOWN_SHAPE), of_all)
    )
    if tables and not any(_agrees(table, of_all) for table in tables):
        raise ValueError(f"{tables[0].file}: contains its ranks and hosts, like all logs here: leave out --nodes and "
                         "--ranks-per-node, or write LOG:nodes=2,ranks-per-node=4 for one that is wrong")  # fmt: skip
    _refuse_other_machines(tables)
    return tables


def _agrees(table: LogTable, of_all: LogShape) -> bool:
    per_node = -(-(table.num_ranks or 0) // (table.num_nodes or 1))
    shape = LogShape(table.num_nodes, per_node)
    return GIVEN in table.read_from or all(given in (None, own) for given, own in zip(of_all, shape, strict=True))


def read_log(path: Path, own: LogShape = UNKNOWN_SHAPE, of_all: LogShape = UNKNOWN_SHAPE) -> list[LogTable]:
    """Return the tables of one file. own, of_all: see `RunShape`."""
    file = str(path)
    shape = Shape(own, of_all)
    readers = NcclTests(file, shape), Osu(file, shape), Gloo(file, shape)

    def end_runs() -> None:
        for reader in readers:
            reader.end_run()

    for number, line in without_labels(list(read_lines(path))):
        try:
            shape.look_at(number, line, end_runs)
            for reader in readers:
                reader.look_at(number, line)
        except ValueError as error:
            raise _at(file, f"line {number}: ", error) from None
    try:
        end_runs()
        tables = [_checked(table) for reader in readers for table in reader.tables]
    except ValueError as error:
        raise _at(file, "", error) from None
    lost = tuple(line for table in tables if not table.rows for line in table.left_out)
    filled = [table for table in tables if table.rows]
    if not filled:
        none = f"{path}: line 1: no table of nccl-tests, OSU micro-benchmarks or Gloo's benchmark in it"
        raise ValueError(lost[0] if lost else none)
    return [replace(filled[0], left_out=lost + filled[0].left_out), *filled[1:]]


def _at(file: str, place: str, error: ValueError) -> ValueError:
    return error if str(error).startswith(f"{file}: ") else ValueError(f"{file}: {place}{error}")


def _checked(table: LogTable) -> LogTable:
    """Return the table, without rows if they are meaningless. Raises ValueError for unknown or wrong ranks or hosts."""
    if not table.rows or (table.test not in TESTS and not (table.num_ranks and table.num_nodes)):
        return table
    place, ranks, nodes = f"{table.file}: line {table.rows[0].line}", table.num_ranks, table.num_nodes
    if ranks == 1:
        why = f"{place}: the table is left out: 1 rank sends nothing: run it with several, as with -g 8, or with MPI=1"
        return replace(table, rows=(), left_out=(*table.left_out, why))
    if ranks is None or nodes is None:
        unknown = "the number of ranks" if ranks is None else f"the number of hosts of its {ranks} ranks"
        raise ValueError(f"{place}: the log does not contain {unknown}: give --nodes and --ranks-per-node, or write "
                         "LOG:nodes=2,ranks-per-node=4 for this log")  # fmt: skip
    if nodes > ranks:
        raise ValueError(f"{table.file}: {plural(ranks, 'rank')} in the log, but {nodes} hosts were given: "
                         "a host has at least one rank")  # fmt: skip
    for row in table.rows:
        try:
            parsed(values.Positive, row.size_bytes, "size in bytes")
            for time_s in row.times_s:
                parsed(values.Duration, time_s, "time")
            for number, name in ((ranks, "ranks"), (nodes, "hosts")):
                parsed(values.NumRanks, number, name)
        except ValueError as error:
            raise ValueError(f"{table.file}: line {row.line}: {error}") from None
    return table


def _refuse_other_machines(tables: Iterable[LogTable]) -> None:
    known: dict[str, str] = {}
    for table in tables:
        if known and table.devices and not known.keys() & set(table.devices):
            device, (other, file) = table.devices[0], next(iter(known.items()))
            raise ValueError(f"{table.file}: device {device!r}, but {other!r} in {file}: logs of different "
                             "machines cannot be one network; give those of one machine at a time")  # fmt: skip
        known = dict.fromkeys(table.devices, table.file) | known


_ROW = re.compile(rf"(?<![\w.,])\d+\s+\d+\s+(?:{'|'.join(ELEMENT_BYTES)})\s")  # of nccl-tests: size, count and type
_DECIMAL = re.compile(r"\d\.\d")
_MOST_LABELS = 16  # of one log: where there are more, they are no labels


def without_labels(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines without launchers' labels before rows and headers."""
    labels = _labels(line for _, line in lines)
    pattern = re.compile(f"(?:{'|'.join(sorted(map(_pattern, labels), key=len, reverse=True))})") if labels else None
    for number, line in lines:
        yield number, pattern.sub("", line, count=1).strip() if pattern and pattern.match(line) else line


def _labels(lines: Iterable[str]) -> set[str]:
    """Return the labels, with 0 for all numbers; labels of rows count only if every row has one."""
    rows: set[str] = set()
    headers: set[str] = set()
    for line in lines:
        if match := _ROW.search(line):
            if len(_DECIMAL.findall(line, match.start())) > 1 and not line.startswith("#"):
                rows.add(_label(line[: match.start()]))
        elif match := next(filter(None, (header.search(line) for header in _HEADERS)), None):
            headers.add(_label(line[: match.start()]))
    labels = (headers | (set() if "" in rows else rows)) - {""}
    return labels if len(labels) <= _MOST_LABELS else set()


_HEADERS = (NCCL_HEADER, OSU_TITLE, GLOO_HEADER)


def _label(text: str) -> str:
    """Return the text with 0 for all numbers; "" for numbers alone."""
    return re.sub(r"\d+", "0", " ".join(text.split())) if re.search(r"[^\d\s.#]", text) else ""


def _pattern(label: str) -> str:
    """Return a pattern of the label with any numbers and blanks, up to the end of a word."""
    words = [re.sub(r"\d+", r"\\d+", re.escape(word)) for word in label.split()]
    return r"\s+".join(words) + (r"(?!\w)" if label[-1].isalnum() else "")
