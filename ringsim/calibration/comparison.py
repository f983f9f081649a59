"""`compare`: what was measured beside what a network file alone says it should have been."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ringsim.calibration.cases import Cell
from ringsim.calibration.protocol_time import TESTS, predict
from ringsim.measurements import RAW_SOCKETS, TORCH, p95
from ringsim.native import executed_schedule, local_s, local_work, rival_schedule
from ringsim.network import Cluster
from ringsim.schedule import Collective
from ringsim.simulation import predict_time

# Summarised apart: what latency decides, what nobody decides alone, and what bandwidth does.
SIZE_CLASSES = (("< 64 KiB", 0, 2**16), ("64 KiB - 1 MiB", 2**16, 2**20), (">= 1 MiB", 2**20, 2**62))


@dataclass(frozen=True, slots=True)
class Compared:
    """A cell and its prediction.

    predicted_s: None where there is no prediction; `how` says why, otherwise by which algorithm and protocol.
    """

    cell: Cell
    predicted_s: float | None
    how: str
    used_in_calibration: bool

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return None if self.predicted_s is None else self.predicted_s / self.cell.measured_s - 1

    @property
    def spread(self) -> float:
        """Of the measured times: between their 10th and 90th percentile, over the median."""
        low, high = self.cell.spread_s
        return (high - low) / self.cell.measured_s

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        cell = self.cell
        return {
            "collective": cell.collective,
            "algorithm": cell.algorithm,
            "size_bytes": cell.size_bytes,
            "num_ranks": cell.num_ranks,
            "num_nodes": cell.num_nodes,
            "predicted_s": self.predicted_s,
            "measured_s": cell.measured_s,
            "error": self.error,
            "spread": self.spread,
            "used_in_calibration": self.used_in_calibration,
            "predicted_by": self.how,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """All cells of one file or several, on one network."""

    network: str
    cells: tuple[Compared, ...]

    def held_out(self) -> list[Compared]:
        """Those predicted that the network was not fitted to."""
        return [each for each in self.cells if each.predicted_s is not None and not each.used_in_calibration]

    def summary(self) -> list[dict[str, Any]]:
        """For each size class, held out and used apart: how many cells, median and 95th percentile of |error|."""
        rows = []
        for used in (False, True):
            for name, low, high in SIZE_CLASSES:
                errors = [
                    abs(each.error)
                    for each in self.cells
                    if each.error is not None
                    and each.used_in_calibration is used
                    and low <= each.cell.size_bytes < high
                ]
                if errors:
                    rows.append({"sizes": name, "used_in_calibration": used, "num_cells": len(errors),
                                 "median": statistics.median(errors), "p95": p95(errors)})  # fmt: skip
        return rows

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "network": self.network,
            "cells": [each.as_dict() for each in self.cells],
            "summary": self.summary(),
        }


def compare_logs(cells: Sequence[Cell], cluster: Cluster) -> Comparison:
    """Of cells from logs: by the formulas of `protocol_time`.

    Raises ValueError where the network cannot hold what was measured, or nothing can be predicted.
    """
    known = [cell for cell in cells if cell.collective in TESTS]
    if not known:
        tests = ", ".join(sorted({cell.collective for cell in cells}))
        raise ValueError(f"{cells[0].file}: {tests}: there is no formula for it, only for {', '.join(TESTS)}")
    found = dict(zip(map(id, known), predict(cluster, [cell.question for cell in known]), strict=True))
    nothing = None, "there is no formula for it"
    return _comparison(cells, cluster, lambda cell: found.get(id(cell), nothing))


def compare_measurements(cells: Sequence[Cell], cluster: Cluster) -> Comparison:
    """Of cells from a measurements file: by simulating the schedule that was executed.

    Raises ValueError where the network cannot hold what was measured, or there are no collectives.
    """
    if not cells:
        raise ValueError("there are no collectives in the measurements: make them with python -m collectives.benchmark")
    return _comparison(cells, cluster, lambda cell: _simulated(cell, cluster))


def _simulated(cell: Cell, cluster: Cluster) -> tuple[float | None, str]:
    if cell.algorithm == RAW_SOCKETS:
        return None, "bare sockets have no schedule"
    collective = Collective(cell.collective)
    try:
        if cell.algorithm == TORCH:
            schedule = rival_schedule(collective, cell.num_ranks, cell.size_bytes)
        else:
            schedule, _ = executed_schedule(collective, cell.algorithm, cell.num_ranks, cell.size_bytes)
    except (ValueError, OSError) as error:
        return None, " ".join(str(error).split())
    work = local_work(collective, cell.algorithm, cell.num_ranks, cell.size_bytes)
    beside_s = cluster.call_s(cell.algorithm == TORCH) + local_s(work, cluster, cell.num_ranks)
    return beside_s + predict_time(schedule, cluster, cell.size_bytes), f"simulating {schedule.algorithm}"


def _comparison(
    cells: Sequence[Cell], cluster: Cluster, predicted: Callable[[Cell], tuple[float | None, str]]
) -> Comparison:
    compared = []
    for cell in cells:
        time_s, how = predicted(cell)
        fitted = cluster.calibration
        used = fitted is not None and fitted.used(cell.collective, cell.num_ranks, cell.num_nodes, cell.size_bytes)
        compared.append(Compared(cell, time_s if time_s is not None and math.isfinite(time_s) else None, how, used))
    return Comparison(cluster.name, tuple(compared))
