"""`Comparison` and `ComparedRun`: measured times and recorded runs, compared with predictions from a network file."""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from typing import Any

import numpy as np

from ringsim.analysis import RunView
from ringsim.calibration.from_probes import num_hosts
from ringsim.calibration.timings import Timing, cases_of_measurements, repeated
from ringsim.estimates import Estimate, ends_of
from ringsim.files import OpenRecord, encode, values
from ringsim.libraries import GLOO, OURS, SHARED_MEMORY, Library, SimulatedDraws, copy_s, intervals, predict
from ringsim.measurements import RING_TESTS, TORCH, WITHOUT_SCHEDULE, Measurements, RecordedRun, busbw_factor, p95
from ringsim.network import Calibration, Network
from ringsim.registry import build_recorded
from ringsim.schedule import Collective, Schedule, dependencies
from ringsim.simulation import Seconds, Timeline, simulate
from ringsim.units import plural

# Summarised separately: times dominated by latency, by both, and by bandwidth.
SIZE_CLASSES = (("< 64 KiB", 0, 2**16), ("64 KiB - 1 MiB", 2**16, 2**20), (">= 1 MiB", 2**20, 2**62))

# The prediction for a case: the fields predicted_s, how and interval of a `ComparedCase`.
Expectation = tuple[float | None, str, Estimate | None]


class ComparedCell(OpenRecord, frozen=True, kw_only=True):
    """A measured collective and its prediction, if any: a cell of compare.json.

    predicted_low_s, predicted_high_s: interval of the measured time. error: predicted over measured, less 1.
    spread: from the 10th to the 90th percentile, over the median.
    """

    collective: values.Name
    algorithm: values.Name
    size_bytes: values.Whole
    num_ranks: values.NumRanks
    num_nodes: values.NumRanks | None = None
    predicted_s: values.Seconds | None = None
    predicted_low_s: float | None = None
    predicted_high_s: float | None = None
    measured_s: values.Duration
    error: values.Number | None = None
    spread: values.Number
    used_in_calibration: bool = False
    predicted_by: str = ""

    @property
    def busbw_bytes_per_s(self) -> float:
        return busbw_factor(self.collective, self.num_ranks) * self.size_bytes / self.measured_s


class ComparedCells(OpenRecord, frozen=True):
    """The contents of compare.json; summary: see `Comparison.summary`."""

    network: values.Text
    cells: tuple[ComparedCell, ...]
    summary: tuple[dict[str, Any], ...] = ()
    extrapolated: str | None = None


@dataclass(frozen=True, slots=True)
class ComparedCase:
    """A measured case and its prediction, as in `ComparedCell`.

    how: algorithm and protocol of the prediction, or why there is none.
    """

    case: Timing
    predicted_s: float | None
    how: str
    used_in_calibration: bool
    interval: Estimate | None = None

    @property
    def is_inside(self) -> bool:
        return self.interval is not None and self.interval.low <= self.case.measured_s <= self.interval.high

    @property
    def error(self) -> float | None:
        return None if self.predicted_s is None else self.predicted_s / self.case.measured_s - 1

    @property
    def spread(self) -> float:
        low, high = self.case.spread_s
        return (high - low) / self.case.measured_s

    @property
    def cell(self) -> ComparedCell:
        call = self.case.call
        return ComparedCell(
            collective=call.collective, algorithm=self.case.algorithm, size_bytes=call.size_bytes,
            num_ranks=call.num_ranks, num_nodes=call.num_nodes, predicted_s=self.predicted_s,
            **ends_of(self.interval), measured_s=self.case.measured_s, error=self.error, spread=self.spread,
            used_in_calibration=self.used_in_calibration, predicted_by=self.how,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """The cases of one or several files, compared on one network."""

    network: str
    cases: tuple[ComparedCase, ...]
    calibration: Calibration | None = None

    def __repr__(self) -> str:
        errors = [abs(compared.error) for compared in self.cases if compared.error is not None]
        median = f", median |error| {statistics.median(errors):.1%}" if errors else ", nothing predicted"
        return f"Comparison({self.network}, {plural(len(self.cases), 'case')}{median})"

    def logs(self) -> list[str]:
        """Return the log of each case; "" if no two logs share a case."""
        named = bool(repeated(compared.case for compared in self.cases))
        return [compared.case.file_name if named else "" for compared in self.cases]

    @property
    def has_intervals(self) -> bool:
        return any(compared.interval for compared in self.cases)

    def extrapolation(self) -> str:
        """Return a note on predictions for more hosts than calibrated; "" if none."""
        known = {cells.num_hosts for cells in self.calibration.cells} if self.calibration else set()
        asked = {compared.case.call.num_nodes for compared in self.cases if compared.predicted_s is not None}
        beyond = sorted(number for number in asked if known and number > max(known))
        if not beyond:
            return ""
        calibrated, wanted = (" and ".join(map(str, sorted(some))) for some in (known, beyond))
        return f"extrapolated: calibrated on {calibrated} {'host' if known == {1} else 'hosts'}, predicted for {wanted}"

    def held_out(self) -> list[ComparedCase]:
        return [case for case in self.cases if case.predicted_s is not None and not case.used_in_calibration]

    def summary(self) -> list[dict[str, Any]]:
        """Return the median and p95 of |error| by size class, held-out cases first.

        inside: share of the measured times in their intervals; None without intervals.
        """
        rows, predicted = [], [compared for compared in self.cases if compared.error is not None]
        for used, (name, low, high) in product((False, True), SIZE_CLASSES):
            own = [compared for compared in predicted if compared.used_in_calibration is used]
            cells = [compared for compared in own if low <= compared.case.call.size_bytes < high]
            if cells:
                errors = [abs(compared.error or 0.0) for compared in cells]
                known = any(compared.interval for compared in cells)
                inside = sum(compared.is_inside for compared in cells) / len(cells) if known else None
                rows.append({
                    "sizes": name, "used_in_calibration": used, "num_cells": len(errors),
                    "median": statistics.median(errors), "p95": p95(errors), "inside": inside,
                })  # fmt: skip
        return rows

    def as_dict(self) -> dict[str, Any]:
        cells = tuple(compared.cell for compared in self.cases)
        return dict(encode(ComparedCells(self.network, cells, tuple(self.summary()), self.extrapolation() or None)))


def compare(measurements: Measurements, cluster: Network, trusted: Collection[str] = ()) -> Comparison:
    """Compare the collectives of `measurements` with simulations of the executed schedules.

    trusted: algorithms of Python files that may be run, see `build_recorded`; others are not predicted.

    Raises ValueError for too many ranks for the network, for wrong results, and without collectives.

        >>> from ringsim import Measurements, compare, load_network
        >>> compare(Measurements.load("measured.json"), load_network("mine.toml")).summary()  # doctest: +SKIP
    """
    cases = cases_of_measurements(measurements, num_hosts(measurements), "measurements")
    return compare_measurements(cases, cluster, trusted)


def compare_logs(cases: Sequence[Timing], cluster: Network) -> Comparison:
    """Compare cases of logs with the formulas of `nccl_model`.

    Raises ValueError for too many ranks for the network, and if nothing can be predicted.
    """
    calls = [case.call for case in cases if not case.call.why_unknown]
    if not calls:
        tests = ", ".join(sorted({case.call.collective for case in cases}))
        raise ValueError(f"{cases[0].file}: {tests}: {cases[0].call.why_unknown}")
    predicted = zip_longest(predict(cluster, calls), intervals(cluster, calls))  # all have one, or none
    expected = ((time_s, how, interval) for (time_s, how), interval in predicted)
    unknown = (case.call.why_unknown for case in cases)
    return _comparison(cases, cluster, ((None, why, None) if why else next(expected) for why in unknown))


def compare_measurements(
    cases: Sequence[Timing],
    cluster: Network,
    trusted: Collection[str] = (),
    on_progress: Callable[[int], object] = lambda _: None,
) -> Comparison:
    """Compare cases of a measurements file as `compare` does.

    on_progress: called with the number of cases since its last call.

    Raises ValueError for too many ranks for the network, and without collectives.
    """
    if not cases:
        raise ValueError("there are no collectives in the measurements: make them with python -m collectives.benchmark")

    draws = SimulatedDraws.from_network(cluster)

    def predicted(case: Timing) -> Expectation:
        on_progress(1)
        try:
            simulated_s, how = _simulation(case, cluster, trusted)
        except (ValueError, OSError) as why:
            return None, " ".join(str(why).split()), None
        time_s = simulated_s(cluster)
        return time_s, how, draws.interval(time_s, simulated_s) if draws else None

    return _comparison(cases, cluster, map(predicted, cases))


def _simulation(case: Timing, cluster: Network, trusted: Collection[str]) -> tuple[Callable[[Network], float], str]:
    """Return a function from a network to simulated seconds, and the prediction's name.

    Raises ValueError or OSError if there is none.
    """
    if case.algorithm in WITHOUT_SCHEDULE:
        raise ValueError(WITHOUT_SCHEDULE[case.algorithm])
    collective, library = Collective(case.call.collective), GLOO if case.algorithm == TORCH else OURS
    if library is OURS:
        schedule = build_recorded(collective, case.algorithm, case.call.num_ranks, case.call.size_bytes, trusted)
    elif case.call.collective in RING_TESTS:
        schedule = library.schedule(collective, case.call.num_ranks, case.call.size_bytes)
    else:
        raise ValueError(f"what torch.distributed does for {case.call.collective} is not known here")
    in_place = library is OURS and bool(case.in_place_s)
    library = executed_over(library, cluster, case.transport, case.call.size_bytes)
    copies = library.copies(collective, case.call.num_ranks, case.call.size_bytes)

    def simulated_s(network: Network) -> float:
        beside_s = copy_s(network, case.call.num_ranks, *copies)
        return library.predict_call(schedule, network, case.call.size_bytes, in_place=in_place, beside_s=beside_s)

    return simulated_s, f"{schedule.algorithm} over {case.transport or 'gloo'}"


def executed_over(library: Library, network: Network, transport: str, size_bytes: int) -> Library:
    """Return the library for repeated calls of one tensor over a transport.

    Raises ValueError if it is shared memory, and the network, unless uniform, does not describe it.
    """
    if transport == SHARED_MEMORY and network.shared_memory is None and network.message_costs is None:
        raise ValueError("it used shared memory, which the network file does not describe")
    return library if library.is_torch else library.over(transport, size_bytes)


def _comparison(cases: Sequence[Timing], cluster: Network, predicted: Iterable[Expectation]) -> Comparison:
    compared, fitted = [], cluster.calibration
    for case, (time_s, how, interval) in zip(cases, predicted, strict=True):
        used = fitted is not None and fitted.used(*case.group, case.call.size_bytes, case.rows)
        finite_s = time_s if time_s is not None and math.isfinite(time_s) else None
        compared.append(ComparedCase(case, finite_s, how, used, interval))
    return Comparison(cluster.name, tuple(compared), cluster.calibration)


RECORD_NOTE = (
    "A record knows only when a transfer was issued and when it was applied: a measured bar lasts from one to the "
    "other, and a predicted one also begins at the issue."
)


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """A predicted and a measured run: row i of both timelines is the same transfer, in the order of the record.

    In `measured`, all times of a transfer but its start are that of its application.
    """

    run: RecordedRun
    predicted: RunView
    measured: RunView

    def __repr__(self) -> str:
        return f"ComparedRun({self.run} on {self.predicted.network.name}, error {self.error:+.1%})"

    @property
    def views(self) -> tuple[RunView, RunView]:
        return self.predicted, self.measured

    @property
    def error(self) -> float:
        return self.predicted.timeline.time_s / self.measured.timeline.time_s - 1


def compare_run(run: RecordedRun, network: Network, trusted: Collection[str] = ()) -> ComparedRun:
    """Simulate the recorded schedule over the transport of the run; all ranks begin at 0. trusted: as in `compare`.

    Raises ValueError if the schedule is unknown here, differs from the recorded transfers, or does not end on this
    network.
    """
    try:
        schedule = build_recorded(run.collective, run.algorithm, run.num_ranks, run.size_bytes, trusted)
        executed = executed_over(OURS, network, run.transport, run.size_bytes).runtime
        in_place = replace(executed, in_place=True)  # as runs are recorded
        simulated = simulate(schedule, network, run.size_bytes, element_bytes=run.element_bytes, runtime=in_place)
    except (ValueError, OSError) as error:
        raise ValueError(f"{run}: {' '.join(str(error).split())}") from error
    if not np.isfinite(simulated.time_s):
        raise ValueError(f"{run}: never ends on network {network.name}: ringsim simulate says why")
    simulated = replace(simulated, start_s=issued_s(schedule, simulated))
    order = np.lexsort((simulated.chunk, simulated.dst, simulated.src, simulated.step))
    predicted = replace(simulated, **{name: getattr(simulated, name)[order] for name in simulated.columns()})
    columns = (predicted.step, predicted.src, predicted.dst, predicted.chunk)
    if run.transfers != list(zip(*(column.tolist() for column in columns), strict=True)):
        reason = "the recorded transfers differ from those of the algorithm in this version"
        raise ValueError(f"{run}: {reason}: record it again")
    applied = np.array(run.applied_s)
    once: dict[str, Any] = dict.fromkeys(("sent_s", "arrived_s", "apply_s", "applied_s"), applied)
    measured = replace(predicted, start_s=np.array(run.issued_s), **once)

    def view(side: str, timeline: Timeline) -> RunView:
        name = f"{run.algorithm}, {side} over {run.transport}"
        return RunView(schedule, network, run.size_bytes, name=name, timeline=timeline)

    return ComparedRun(run, view("predicted", predicted), view("measured", measured))


def issued_s(schedule: Schedule, timeline: Timeline) -> Seconds:
    """Return the (num_transfers,) seconds at which senders can issue transfers, by rules 1 and 2 of the execution."""
    ready = np.append(timeline.applied_s, 0.0)[dependencies(schedule, in_order=OURS.runtime.in_order).data_dependency]
    latest: dict[tuple[int, int], float] = {}
    for row, pair in enumerate(zip(timeline.src.tolist(), timeline.dst.tolist(), strict=True)):
        latest[pair] = ready[row] = max(ready[row], latest.get(pair, 0.0))
    return ready
