"""`Timing`: the measured times of one collective of one size on the same ranks, from any source."""

import hashlib
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ringsim.estimates import Estimate
from ringsim.libraries import Call
from ringsim.measurements import (
    NOT_KNOWN,
    RING_TESTS,
    TORCH,
    LogRow,
    LogTable,
    Measurements,
    NcclSettings,
    RankHosts,
    p10_p90,
)

MISFIT = 0.25  # of a time: beyond that the model is said not to fit
_ADDING_SWITCHES = ("H100", "H200", "H800", "H20", "GH200")  # GPUs that may be connected to switches that reduce
DIGEST_LENGTH = 10  # letters: only rows of the same collective, ranks and size are compared
_Rows = list[tuple[LogTable, LogRow]]


@dataclass(frozen=True, slots=True)
class Timing:
    """All times of one collective of one size on the same ranks; "" or () if not known.

    algorithm: as in `CollectiveTimes`; of a log "ring" if nothing else is possible, otherwise the benchmark's name.
    times_s: of each run or iteration, out of place and in place. in_place_s: in place only.
    spread_s: 10th and 90th percentile of times_s, or the benchmark's own figures.
    transport: "shm" if chunks went through shared memory.
    rows: digests of a log's rows, by which a network file recognises its calibration.
    """

    call: Call
    algorithm: str
    times_s: tuple[float, ...]
    in_place_s: tuple[float, ...] = ()
    spread_s: tuple[float, float] = (0.0, 0.0)
    device: str = ""
    file: str = ""
    rows: tuple[str, ...] = ()
    transport: str = ""

    @property
    def group(self) -> tuple[str, str, int, int]:
        return self.call.collective, self.algorithm, self.call.num_ranks, self.call.num_nodes

    @property
    def file_name(self) -> str:
        return self.file.replace("\\", "/").rpartition("/")[2]

    @property
    def measured_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def calibrated_s(self) -> float:
        """The time to fit: all_gather and reduce_scatter spare a copy in place."""
        spared = self.in_place_s if self.call.collective in RING_TESTS[1:] else ()
        return statistics.median(spared or self.times_s)

    @property
    def may_use_switch(self) -> bool:
        """Whether NCCL may have used switches that reduce."""
        return bool(self.call.settings.uses_switch) and _may_hang_on_switch(self.device)


@dataclass(frozen=True, slots=True)
class FittedParameter(Estimate):
    """A fitted parameter in SI units, with its interval, see `SURE`.

    seen_in: the cases whose times depend on it; empty: it keeps its prior.
    """

    name: str
    seen_in: tuple[Timing, ...]


def repeated(cases: Iterable[Timing]) -> list[list[Timing]]:
    """Return the groups of cases that differ only in their file."""
    alike: dict[tuple[Call, str], list[Timing]] = {}
    for case in cases:
        alike.setdefault((case.call, case.algorithm), []).append(case)
    return [some for some in alike.values() if len(some) > 1]


def cases_of_tables(tables: Iterable[LogTable], known: NcclSettings = NOT_KNOWN) -> list[Timing]:
    """Return a case for each collective, algorithm, size, number of ranks and hosts, and file (settings may differ).

    known: settings of NCCL for logs without them.
    """
    rows_by_case: dict[tuple[Call, str, str], _Rows] = {}
    for table in tables:
        if not table.num_ranks or not table.num_nodes:
            continue  # of a test that there is no formula for, which needs none
        settings = NcclSettings.from_environment(table.environment).or_else(known)
        for row in table.rows:
            call = Call(table.test, row.size_bytes, table.num_ranks, table.num_nodes, settings)
            rows_by_case.setdefault((call, _algorithm(table, settings), table.file), []).append((table, row))
    cases = [_case(*key, rows) for key, rows in rows_by_case.items()]
    return sorted(cases, key=lambda case: (*case.group[:2], *case.call[1:4], case.file, str(case.call.settings)))


def _algorithm(table: LogTable, settings: NcclSettings) -> str:
    gloo = table.environment.get("algorithm", "") if table.benchmark == "gloo" else ""
    if settings.algorithms == "ring" or "ring" in gloo or _has_ring_alone(table, settings):
        return "ring"
    return {"nccl-tests": "nccl"}.get(table.benchmark, gloo or table.benchmark)


def _may_hang_on_switch(device: str) -> bool:
    return any(gpu in device for gpu in _ADDING_SWITCHES)


def _has_ring_alone(table: LogTable, settings: NcclSettings) -> bool:
    """Return whether NCCL can only have used a ring.

    all_gather and reduce_scatter also have PAT from version 2.23 on between hosts of one GPU, and NVLS within a host
    whose switches reduce. (CollNet needs a plug-in and its own switches.)
    """
    if table.benchmark != "nccl-tests" or table.test not in RING_TESTS[1:]:
        return False
    if table.num_nodes == 1:
        may_add = any(map(_may_hang_on_switch, table.devices))
        return not may_add or settings.uses_switch is False
    return table.num_nodes != table.num_ranks or settings.uses_pat is False


def _case(call: Call, algorithm: str, file: str, rows: _Rows) -> Timing:
    times = tuple(time for _, row in rows for time in row.times_s)
    in_place = tuple(row.times_s[1] for _, row in rows if len(row.times_s) > 1)
    lows = [row.low_s for _, row in rows if row.low_s is not None]
    highs = [row.high_s for _, row in rows if row.high_s is not None]
    spread = (min(lows), max(highs)) if lows and highs else p10_p90(times)
    digests = tuple(sorted({_digest(call, row) for _, row in rows}))
    device = " and ".join(sorted({device for table, _ in rows for device in table.devices}))
    return Timing(call, algorithm, times, in_place, spread, device, file, digests)


def _digest(call: Call, row: LogRow) -> str:
    """Return a digest of a row, different for another run of the test."""
    times = [f"{time_s:.9e}" for time_s in row.times_s]
    return hashlib.sha256(" ".join([*map(str, call[:4]), *times]).encode()).hexdigest()[:DIGEST_LENGTH]


def cases_of_measurements(measurements: Measurements, num_nodes: int, file: str) -> list[Timing]:
    """Return a case for each competitor, without arrival skew if all ranks have one clock.

    Raises ValueError for wrong results.
    """
    rank_hosts = RankHosts.from_measurements(measurements)
    one_clock = rank_hosts is not None and rank_hosts.one_clock
    transport = "shm" if measurements.provenance.get("transport") == "shm" else ""
    cases = []
    for index, times in enumerate(measurements.collectives):
        if times.wrong:
            raise ValueError(
                f"{file}: collectives[{index}]: wrong is {times.wrong}: its results were wrong, so the times say "
                f"nothing; find out why, and measure again"
            )
        seconds = times.times_without_skew_s if one_clock else times.times_s
        call = Call(times.collective.value, times.size_bytes, times.num_ranks, num_nodes)
        in_place_s = seconds if times.in_place else ()
        own = transport if times.algorithm != TORCH else ""
        cases.append(Timing(call, times.algorithm, seconds, in_place_s, p10_p90(seconds), file=file, transport=own))
    return cases
