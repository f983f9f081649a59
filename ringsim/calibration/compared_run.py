"""`ComparedRun`: a recorded run and the simulation of the same schedule."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringsim.analysis import RunView
from ringsim.calibration.comparison import executed_on
from ringsim.measurements import RecordedRun
from ringsim.network import AnyNetwork
from ringsim.registry import build_recorded
from ringsim.schedule import Schedule, dependencies
from ringsim.simulation import OURS, Seconds, Timeline, simulate

RECORD_NOTE = (
    "A record knows only when a transfer was issued and when it was applied: a measured bar lasts from one to the "
    "other, and a predicted one also begins at the issue."
)


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """A run as predicted and as measured: row i, in the order of the record, is one transfer in both timelines.

    In both a transfer starts when it is issued; in `measured` it leaves, arrives and begins to be applied when it is
    applied, see `RECORD_NOTE`.
    """

    run: RecordedRun
    predicted: RunView
    measured: RunView

    def __repr__(self) -> str:
        return f"ComparedRun({self.run} on {self.predicted.network.name}, error {self.error:+.1%})"

    @property
    def views(self) -> tuple[RunView, RunView]:
        """Both sides, the prediction first."""
        return self.predicted, self.measured

    @property
    def error(self) -> float:
        """The predicted time over the measured one, less 1."""
        return self.predicted.timeline.time_s / self.measured.timeline.time_s - 1


def compare_run(run: RecordedRun, network: AnyNetwork, trusted: Collection[str] = ()) -> ComparedRun:
    """Simulate the schedule that was recorded over the transport of the run, all ranks beginning at 0.

    trusted: algorithms of Python files that may be run, see `build_recorded`.

    Raises ValueError, which names the run, where there is no such schedule here, or it is another than was recorded, or
    does not end on this network.
    """
    try:
        schedule = build_recorded(run.collective, run.algorithm, run.num_ranks, run.size_bytes, trusted)
        executed = OURS.network(executed_on(network, run.transport), run.size_bytes)
        in_place = replace(OURS, in_place=True)  # as runs are recorded
        simulated = simulate(schedule, executed, run.size_bytes, element_bytes=run.element_bytes, runtime=in_place)
    except (ValueError, OSError) as error:
        raise ValueError(f"{run}: {' '.join(str(error).split())}") from error
    if not np.isfinite(simulated.time_s):
        raise ValueError(f"{run}: never ends on network {network.name}: ringsim simulate says why")
    simulated = replace(simulated, start_s=issued_s(schedule, simulated))
    order = np.lexsort((simulated.chunk, simulated.dst, simulated.src, simulated.step))
    predicted = replace(simulated, **{name: getattr(simulated, name)[order] for name in simulated.columns()})
    columns = (predicted.step, predicted.src, predicted.dst, predicted.chunk)
    if run.transfers != list(zip(*(column.tolist() for column in columns), strict=True)):
        raise ValueError(
            f"{run}: the recorded transfers differ from those of the algorithm in this version: record it again"
        )
    applied = np.array(run.applied_s)
    once: dict[str, Any] = dict.fromkeys(("sent_s", "arrived_s", "apply_s", "applied_s"), applied)
    measured = replace(predicted, start_s=np.array(run.issued_s), **once)

    def view(side: str, timeline: Timeline) -> RunView:
        name = f"{run.algorithm}, {side} over {run.transport}"
        return RunView(schedule, network, run.size_bytes, name=name, timeline=timeline)

    return ComparedRun(run, view("predicted", predicted), view("measured", measured))


def issued_s(schedule: Schedule, timeline: Timeline) -> Seconds:
    """Return when each transfer could have been handed to the network by its sender, as a record says: seconds.

    It may then have waited for its turn on the link. By rules 1 and 2 of the execution, in order: (num_transfers,).
    """
    ready = np.append(timeline.applied_s, 0.0)[dependencies(schedule, in_order=OURS.in_order).data_dependency]
    latest: dict[tuple[int, int], float] = {}
    for row, pair in enumerate(zip(timeline.src.tolist(), timeline.dst.tolist(), strict=True)):
        latest[pair] = ready[row] = max(ready[row], latest.get(pair, 0.0))
    return ready
