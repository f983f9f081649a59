"""`read_logs`: the tables of nccl-tests, OSU and Gloo logs, whichever they are."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ringsim.files import parsed, values
from ringsim.measurements.logs import gloo, nccl_tests, osu
from ringsim.measurements.logs.gloo import Gloo
from ringsim.measurements.logs.lines import LogShape, LogTable, Shape, read_lines
from ringsim.measurements.logs.nccl_rows import ELEMENT_BYTES
from ringsim.measurements.logs.nccl_tests import NcclTests
from ringsim.measurements.logs.osu import Osu
from ringsim.units import plural


def read_logs(
    paths: Iterable[str | os.PathLike[str]],
    num_nodes: int | None = None,
    ranks_per_node: int | None = None,
    shapes: Mapping[str | os.PathLike[str], LogShape] | None = None,
) -> tuple[LogTable, ...]:
    """Return all tables of all files.

    num_nodes, ranks_per_node: of logs that do not tell. shapes: of single logs, believed before what these tell of
    their hosts.

    Raises ValueError, naming file and line, for what is no such log, for wrong results, for rows that contradict
    themselves, and where ranks or hosts are neither in the log nor given; OSError if a file cannot be read.
    """
    of_all, read = LogShape(num_nodes, ranks_per_node), []
    for path in paths:
        own = (shapes or {}).get(path, LogShape())
        given = LogShape(own.num_nodes or num_nodes, own.ranks_per_node or ranks_per_node)
        read += [(table, own) for table in read_log(Path(path), given.num_ranks)]
    if of_all != LogShape() and all(_tells(table) for table, _ in read):
        raise ValueError(f"{read[0][0].file}: contains its ranks and hosts, like all logs here: leave out --nodes and "
                         "--ranks-per-node, or write LOG:nodes=2,ranks-per-node=4 for one that is wrong")  # fmt: skip
    tables = tuple(_placed(table, own, of_all) for table, own in read)
    _refuse_other_machines(tables)
    return tables


def read_log(path: Path, num_ranks: int | None = None) -> list[LogTable]:
    """Return the tables of one file as far as it tells; each reader takes the lines it knows.

    num_ranks: believed where the log does not tell.
    """
    file = str(path)
    readers = (
        NcclTests(file, shape=Shape(num_ranks)),
        Osu(file, shape=Shape(num_ranks)),
        Gloo(file, shape=Shape(num_ranks)),
    )
    for number, line in without_labels(list(read_lines(path))):
        try:
            for reader in readers:
                reader.look_at(number, line)
        except ValueError as error:
            raise _at(file, f"line {number}: ", error) from None
    tables: list[LogTable] = []
    for reader in readers:
        try:
            reader.finish()
            tables += [table for table in reader.tables if table.rows]
        except ValueError as error:
            raise _at(file, "", error) from None
    for table in tables:
        _check(table)
    if not tables:
        raise ValueError(f"{path}: line 1: no table of nccl-tests, OSU micro-benchmarks or Gloo's benchmark in it")
    return tables


def _at(file: str, place: str, error: ValueError) -> ValueError:
    """Return the error with its place in the file, if it does not name the file already."""
    return error if str(error).startswith(f"{file}: ") else ValueError(f"{file}: {place}{error}")


def _check(table: LogTable) -> None:
    """Raise ValueError for a number that is none of a real machine, and that no fit could go on with."""
    for row in table.rows:
        try:
            parsed(values.whole(1), row.size_bytes, "size in bytes")
            for time_s in row.times_s:
                parsed(values.seconds(values.MIN_S), time_s, "time")
            for number, name in ((table.num_ranks, "ranks"), (table.num_nodes, "hosts")):
                if number is not None:
                    parsed(values.whole(1, values.MAX_RANKS), number, name)
        except ValueError as error:
            raise ValueError(f"{table.file}: line {row.line}: {error}") from None


def _tells(table: LogTable) -> bool:
    """Return whether a log tells its ranks and hosts."""
    return table.test.startswith("pt2pt") or bool(table.num_ranks and table.num_nodes)


def _placed(table: LogTable, own: LogShape, of_all: LogShape) -> LogTable:
    """Return the table with its ranks and hosts. Raises ValueError if they are not known, or not the log's."""
    if table.test.startswith("pt2pt"):
        of_all = LogShape()  # two ranks on two hosts, unless it is said of this log
    nodes = own.num_nodes or table.num_nodes or of_all.num_nodes
    per_node = own.ranks_per_node or (None if table.num_ranks and nodes else of_all.ranks_per_node)
    ranks = table.num_ranks or (nodes and per_node and nodes * per_node)
    if nodes is None and per_node and ranks:
        nodes = -(-ranks // per_node)
    if ranks is None or nodes is None:
        unknown = "the number of ranks" if ranks is None else f"the number of hosts of its {ranks} ranks"
        raise ValueError(f"{table.file}: line {table.rows[0].line}: the log does not contain {unknown}: give --nodes "
                         "and --ranks-per-node, or write LOG:nodes=2,ranks-per-node=4 for this log")  # fmt: skip
    if own.ranks_per_node and nodes * own.ranks_per_node != ranks:
        raise ValueError(f"{table.file}: {ranks} ranks in the log, but {plural(nodes, 'host')} of "
                         f"{own.ranks_per_node} were given for it: leave that out")  # fmt: skip
    if nodes > ranks:
        raise ValueError(f"{table.file}: {plural(ranks, 'rank')} in the log, but {nodes} hosts were given: "
                         "a host has at least one rank")  # fmt: skip
    return replace(table, num_ranks=ranks, num_nodes=nodes)


def _refuse_other_machines(tables: Iterable[LogTable]) -> None:
    """One network cannot be two machines: the first device that differs is named."""
    first: tuple[str, str] | None = None
    for table in tables:
        for device in table.devices:
            first = first or (device, table.file)
            if device != first[0]:
                raise ValueError(f"{table.file}: device {device!r}, but {first[0]!r} in {first[1]}: logs of different "
                                 "machines cannot be one network; give those of one machine at a time")  # fmt: skip


_ROW = re.compile(rf"(?<![\w.])\d+\s+\d+\s+(?:{'|'.join(ELEMENT_BYTES)})\s")  # of nccl-tests: size, count and type
_DECIMAL = re.compile(r"\d\.\d")
_MOST_LABELS = 16  # of one log: where there are more, they are no labels


def without_labels(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines without the labels that stand before the rows and headers of tables."""
    labels = _labels(line for _, line in lines)
    pattern = re.compile(f"(?:{'|'.join(sorted(map(_pattern, labels), key=len, reverse=True))})") if labels else None
    for number, line in lines:
        yield number, pattern.sub("", line, count=1).strip() if pattern and pattern.match(line) else line


def _labels(lines: Iterable[str]) -> set[str]:
    """Return the labels, with 0 for all numbers; without those of rows where a row has none."""
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


_HEADERS = (nccl_tests.HEADER, osu.TITLE, gloo.HEADER)


def _label(text: str) -> str:
    """Return the text with 0 for all numbers; "" if numbers are all that there is, as they may belong to the table."""
    return re.sub(r"\d+", "0", " ".join(text.split())) if re.search(r"[^\d\s.#]", text) else ""


def _pattern(label: str) -> str:
    """Return a pattern of the label with any numbers and blanks, and nothing that is longer by a part of a word."""
    words = [re.sub(r"\d+", r"\\d+", re.escape(word)) for word in label.split()]
    return r"\s+".join(words) + (r"(?!\w)" if label[-1].isalnum() else "")
