"""`write_run_trace`: predicted and measured runs side by side, for Perfetto or chrome://tracing.

A process for each side, in it a thread for each rank; where a rank has several transfers under way it has several, as
slices of one thread must not overlap. A slice is a transfer, in the thread of its sender, from when it was issued to
when it was applied. The viewers choose colours by names, and the same transfer has the same name on both sides.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from ringsim.calibration import ComparedRun
from ringsim.files import atomic_file
from ringsim.report.send_rows import pack_sends
from ringsim.report.trace import event_lines, metadata, slices
from ringsim.simulation import Timeline


def write_run_trace(path: str | os.PathLike[str], runs: Sequence[ComparedRun]) -> None:
    """Writes all runs, each with its two sides one below the other on the same axis of time, in microseconds.

    The file appears complete or not at all. Raises OSError if it cannot be written, ValueError for too many transfers.
    """
    sides = chain.from_iterable(_sides(run) for run in runs)
    lines = chain.from_iterable(_process(pid, name, side) for pid, (name, side) in enumerate(sides, 1))
    with atomic_file(Path(path)) as file:
        file.writelines(event_lines(sum(2 * len(run.measured) for run in runs), lines, str(path)))


def _sides(compared: ComparedRun) -> Iterator[tuple[str, Timeline]]:
    """With their names; times from when the first rank began, since the viewers know none below 0."""
    run = compared.run
    first = min(run.begin_s)
    for side, timeline in (("predicted", compared.predicted), ("measured", compared.measured)):
        start, applied = timeline.start_s - first, timeline.applied_s - first
        under_way = replace(timeline, start_s=start, left_s=applied, applied_s=applied)
        yield f"{run.collective.value} {run.algorithm} {side} over {run.transport}", under_way


def _process(pid: int, name: str, timeline: Timeline) -> Iterator[str]:
    row = pack_sends(timeline)
    num_rows = np.ones(timeline.num_ranks, dtype=np.int64)
    np.maximum.at(num_rows, timeline.src, row + 1)
    first_tid = np.cumsum(num_rows) - num_rows
    yield metadata("process_name", pid, 0, name=name)
    yield metadata("process_sort_index", pid, 0, sort_index=pid)
    for rank, count in enumerate(num_rows.tolist()):
        for beside in range(count):
            tid = int(first_tid[rank]) + beside
            yield metadata("thread_name", pid, tid, name=f"rank {rank}" + (f", {beside + 1}" if beside else ""))
            yield metadata("thread_sort_index", pid, tid, sort_index=tid)
    reduce, tids = timeline.reduce.tolist(), (first_tid[timeline.src] + row).tolist()
    for activity in slices(timeline, timeline.start_s, timeline.applied_s, [pid] * len(timeline), tids):
        does = "reduce" if reduce[activity.row] else "copy"
        yield activity.line(
            f"{does} chunk {activity.chunk}, rank {activity.src} to rank {activity.dst}, step {activity.step}"
        )
