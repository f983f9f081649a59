"""`LogTable` and `LogRow`: the results of any benchmark in this project's units."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogRow:
    """One size in a benchmark's table.

    size_bytes: of the whole tensor (for all_gather the output, for reduce_scatter the input); of a message, where
    there is no collective.
    times_s: out of place first, then in place, as far as they were timed.
    low_s, high_s: of the repetitions behind the time, if the benchmark tells; not what it calls a minimum over ranks.
    line: where it stands, from 1.
    """

    size_bytes: int
    times_s: tuple[float, ...]
    line: int
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True, slots=True)
class LogTable:
    """The rows of one run of a benchmark.

    test: "all_reduce" and so on, or a name of `operations`; whatever else a benchmark times keeps its own name.
    num_nodes: hosts; None if the log does not tell.
    devices: what the log says each rank runs on, without doubles.
    environment: what else the log tells: versions, commands, what was forced.
    """

    file: str
    benchmark: str
    test: str
    num_ranks: int | None
    num_nodes: int | None
    rows: tuple[LogRow, ...]
    devices: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
