"""`ComparedRun`: a recorded run beside the simulation of the same schedule."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringsim.calibration.comparison import executed_on
from ringsim.measurements import RecordedRun
from ringsim.network import AnyNetwork
from ringsim.registry import build_recorded
from ringsim.schedule import Ints, Schedule, dependencies
from ringsim.simulation import OURS, Seconds, Timeline, simulate


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """A run as predicted and as measured: row i, in the order of the record, is one transfer in both timelines.

    A record knows only when a transfer was issued and applied, so in both a transfer starts when it is issued, and in
    `measured` it leaves, arrives and begins to be applied when it is applied.
    """

    run: RecordedRun
    network: str
    predicted: Timeline
    measured: Timeline

    def __repr__(self) -> str:
        return f"ComparedRun({self.run} on {self.network}, error {self.error:+.1%})"

    @property
    def error(self) -> float:
        """The predicted time over the measured one, less 1."""
        return self.predicted.time_s / self.measured.time_s - 1


def compare_run(run: RecordedRun, network: AnyNetwork, name: str, trusted: Collection[str] = ()) -> ComparedRun:
    """Simulate the schedule that was recorded over the transport of the run, all ranks beginning at 0.

    name: of the network, for titles. trusted: algorithms of Python files that may be run, see `build_recorded`.

    Raises ValueError, which names the run, where there is no such schedule here, or it is another than was recorded, or
    does not end on this network.
    """
    try:
        schedule = build_recorded(run.collective, run.algorithm, run.num_ranks, run.size_bytes, trusted)
        network = OURS.network(executed_on(network, run.transport), run.size_bytes)
        in_place = replace(OURS, in_place=True)  # as runs are recorded
        simulated = simulate(schedule, network, run.size_bytes, element_bytes=run.element_bytes, runtime=in_place)
    except (ValueError, OSError) as error:
        raise ValueError(f"{run}: {' '.join(str(error).split())}") from error
    if not np.isfinite(simulated.time_s):
        raise ValueError(f"{run}: never ends on network {name}: ringsim simulate says why")
    order = np.lexsort((simulated.chunk, simulated.dst, simulated.src, simulated.step))
    predicted = _in_order(replace(simulated, start_s=issued_s(schedule, simulated)), order)
    columns = (predicted.step, predicted.src, predicted.dst, predicted.chunk)
    if run.transfers != list(zip(*(column.tolist() for column in columns), strict=True)):
        raise ValueError(
            f"{run}: the recorded transfers differ from those of the algorithm in this version: record it again"
        )
    return ComparedRun(run, name, predicted, _measured(run, predicted))


def issued_s(schedule: Schedule, timeline: Timeline) -> Seconds:
    """Return when each transfer could have been handed to the network by its sender, as a record says: seconds.

    It may then have waited for its turn on the link. By rules 1 and 2 of the execution, in order: (num_transfers,).
    """
    ready = np.append(timeline.applied_s, 0.0)[dependencies(schedule, in_order=OURS.in_order).data_dependency]
    latest: dict[tuple[int, int], float] = {}
    for row, pair in enumerate(zip(timeline.src.tolist(), timeline.dst.tolist(), strict=True)):
        latest[pair] = ready[row] = max(ready[row], latest.get(pair, 0.0))
    return ready


def _in_order(timeline: Timeline, order: Ints) -> Timeline:
    columns = {name: getattr(timeline, name)[order] for name in timeline.columns()}
    return replace(timeline, **columns)


def _measured(run: RecordedRun, like: Timeline) -> Timeline:
    applied = np.array(run.applied_s)
    return replace(
        like, start_s=np.array(run.issued_s), sent_s=applied, arrived_s=applied, apply_s=applied, applied_s=applied
    )


def picture_names(runs: Sequence[RecordedRun]) -> list[str]:
    """Return a file's name for the picture of each run: run-all_reduce-ring.png, and -2 for another such run."""
    stems = [re.sub(r"[^\w.-]+", "-", f"run-{run.collective.value}-{run.algorithm}") for run in runs]
    before = [stems[:index].count(stem) for index, stem in enumerate(stems)]
    return [f"{stem}-{count + 1}.png" if count else f"{stem}.png" for stem, count in zip(stems, before, strict=True)]
