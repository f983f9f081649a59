"""`write_trace`: timelines as a trace file for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

Each rank is a process, with a thread for applications, one or more for sends, since slices of a thread must not
overlap, and one for a hang. An arrow leads from a send to its application.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ringsim.analysis import BlockedRun, hanging_text, pack_sends
from ringsim.files import atomic_file
from ringsim.schedule import Ints
from ringsim.simulation import Seconds, Timeline
from ringsim.traces import ProgramTrace
from ringsim.training_step import StepTimeline

MAX_TRANSFERS = 500_000  # of all runs; with four events each, about the limit of a browser
_EVENTS_AT_ONCE = 10_000
_APPLIES = 0  # the thread of applications; the threads of sends and of a hanging activity follow
_STOPPED, _AT_LEAST_US = 0.05, 1.0  # relative and absolute extension of a hanging activity beyond the end of the run

Event = dict[str, Any]


def write_trace(
    path: str | os.PathLike[str], runs: Sequence[tuple[str, Timeline]], blocked_runs: Sequence[BlockedRun | None] = ()
) -> None:
    """Write runs under their names, one below the other, without transfers that never happen.

    blocked_runs: one entry per run, None if it finishes; empty if all finish. Times count from 0, or from an earlier
    first activity, in whole nanoseconds. The file appears complete or not at all. Raises OSError if it cannot be
    written, ValueError for more than MAX_TRANSFERS transfers.

        >>> from ringsim import Network, ring_all_reduce, simulate, write_trace
        >>> timeline = simulate(ring_all_reduce(4), Network.uniform(1e-5, 1e9), 2**20)
        >>> write_trace("ring.json", [("simulated", timeline)])  # for ui.perfetto.dev
    """
    with atomic_file(Path(path)) as file:
        file.writelines(map(str.encode, trace_lines(runs, str(path), blocked_runs)))


def trace_lines(
    runs: Sequence[tuple[str, Timeline]], name: str, blocked_runs: Sequence[BlockedRun | None] = ()
) -> Iterator[str]:
    """Yield the lines of `write_trace`; name: the file's, for errors."""
    zero_s = min((float(timeline.start_s.min(initial=0.0)) for _, timeline in runs), default=0.0)
    events: list[Iterator[Event]] = []
    first_pid, first_arrow = 1, 0  # processes and arrows are numbered through all runs
    for (run, timeline), blocked in zip(runs, blocked_runs or [None] * len(runs), strict=True):
        events.append(_run_events(run, timeline, blocked, zero_s, first_pid, first_arrow))
        first_pid += timeline.num_ranks
        first_arrow += len(timeline)
    return _lines(first_arrow, chain.from_iterable(events), name)


def step_trace_lines(timeline: StepTimeline, trace: ProgramTrace, name: str) -> Iterator[str]:
    """Yield the lines of a file with the computations of a step, its waits, and the calls of each group.

    Overlapping calls overlap in their group's thread. Raises ValueError for an endless step.
    """
    timeline.require_end()
    num_events = len(timeline.computations) + len(timeline.waits) + len(timeline.calls)
    return _lines(num_events, _step_events(timeline, trace), name)


def _lines(num_transfers: int, events: Iterator[Event], name: str) -> Iterator[str]:
    if num_transfers > MAX_TRANSFERS:
        raise ValueError(f"{name}: a trace holds at most {MAX_TRANSFERS:,} transfers; these are {num_transfers:,}")
    yield '{"displayTimeUnit": "ns", "traceEvents": ['
    separator = "\n"
    while batch := list(islice(events, _EVENTS_AT_ONCE)):
        yield separator + json.dumps(batch)[1:-1]
        separator = ",\n"
    yield "\n]}\n"


def _named(kind: str, pid: int, tid: int, name: str, place: int) -> Iterator[Event]:
    for event, args in ((f"{kind}_name", {"name": name}), (f"{kind}_sort_index", {"sort_index": place})):
        yield {"ph": "M", "name": event, "pid": pid, "tid": tid, "args": args}


def _slice(pid: int, tid: int, name: str, begin_us: float, duration_us: float, args: Event) -> Event:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": begin_us, "dur": duration_us, "args": args}


def _run_events(
    name: str, timeline: Timeline, blocked: BlockedRun | None, zero_s: float, first_pid: int, first_arrow: int
) -> Iterator[Event]:
    row, num_rows = pack_sends(timeline)
    for pid, count in enumerate(num_rows.tolist(), first_pid):
        yield from _named("process", pid, 0, f"{name} rank {pid - first_pid}", pid)
        yield from _named("thread", pid, _APPLIES, "apply", count + 1)
        for tid in range(1, count + 1):
            yield from _named("thread", pid, tid, "send" if count == 1 else f"send {tid}", tid)
    yield from _transfers(timeline, row, zero_s, first_pid, first_arrow)
    if blocked:
        yield from _hanging(blocked, num_rows.tolist(), first_pid)


def _transfers(timeline: Timeline, row: Ints, zero_s: float, first_pid: int, first_arrow: int) -> Iterator[Event]:
    moments = timeline.start_s, timeline.sent_s, timeline.apply_s, timeline.applied_s
    start, sent, apply, applied = (np.rint((times_s - zero_s) * 1e9) for times_s in moments)
    # An arrow for each applied transfer whose send is long enough to be visible.
    arrows = np.where((sent > start) & np.isfinite(applied), first_arrow + np.arange(len(timeline)), -1)
    columns = (timeline.step, timeline.chunk, timeline.src, timeline.dst, timeline.reduce, arrows)
    transfers = list(zip(*(column.tolist() for column in columns), strict=True))
    sides = (
        ("s", start, sent, timeline.src.astype(np.int64), _APPLIES + 1 + row),
        ("f", apply, applied, timeline.dst.astype(np.int64), np.full(len(timeline), _APPLIES)),
    )
    for phase, begins, ends, rank, thread in sides:
        for index, pid, tid, begin, end in _in_order(begins, ends, first_pid + rank, thread):
            step, chunk, src, dst, reduce, number = transfers[index]
            does = f"{'reduce' if reduce else 'copy'} chunk {chunk} from rank {src}"
            name = f"send chunk {chunk} to rank {dst}" if phase == "s" else does
            args = {"step": step, "chunk": chunk, "src": src, "dst": dst}
            activity = _slice(pid, tid, name, begin / 1000, (end - begin) / 1000, args)
            arrow = {"ph": phase, "cat": "transfer", "name": "transfer", "id": number, "pid": pid, "tid": tid}
            arrow["ts"] = begin / 1000
            # An arrow begins in the preceding slice, and ends in the following slice.
            yield from [activity, arrow][:: 1 if phase == "s" else -1] if number >= 0 else [activity]


def _in_order(begin: Seconds, end: Seconds, pids: Ints, tids: Ints) -> Iterator[tuple[int, int, int, int, int]]:
    order = np.lexsort((end, begin))
    threads = list(zip(pids.tolist(), tids.tolist(), strict=True))
    busy_until: dict[tuple[int, int], int] = {}
    for row in order[np.isfinite(end[order])].tolist():
        thread = threads[row]
        # Rows are packed with a tolerance for rounding, but the viewers drop slices that overlap at all.
        begins = max(int(begin[row]), busy_until.get(thread, 0))
        busy_until[thread] = ends = max(int(end[row]), begins)
        yield row, *thread, begins, ends


def _hanging(blocked: BlockedRun, num_rows: Sequence[int], first_pid: int) -> Iterator[Event]:
    end_us = _microseconds(blocked.until_s * (1 + _STOPPED)) + _AT_LEAST_US
    for stalled in blocked.ranks:
        pid, tid = first_pid + stalled.rank, num_rows[stalled.rank] + 1
        yield from _named("thread", pid, tid, "hangs", tid + 1)
        begin_us = _microseconds(stalled.last_active_s)
        args = {**asdict(stalled.transfer), "failed": list(stalled.failed)}
        yield _slice(pid, tid, hanging_text(stalled, first_step=0), begin_us, round(end_us - begin_us, 3), args)


def _microseconds(time_s: float) -> float:
    return round(time_s * 1e6, 3)


def _step_events(timeline: StepTimeline, trace: ProgramTrace) -> Iterator[Event]:
    pid, step = 1, timeline.step
    yield from _named("process", pid, 0, f"rank {trace.rank} of {trace.num_ranks}", 0)
    for tid, name in enumerate(["compute", *(group.name for group in trace.groups)]):
        yield from _named("thread", pid, tid, name, tid)

    def during(tid: int, name: str, begin_s: float, end_s: float, args: Event) -> Event:
        return _slice(pid, tid, name, _microseconds(begin_s), _microseconds(end_s - begin_s), args)

    for event, begin_s, end_s in timeline.computations:
        operators = {operator.name: operator.count for operator in step.events[event].operators}
        yield during(0, "compute", begin_s, end_s, operators)
    for call, begin_s, end_s in timeline.waits:
        yield during(0, f"wait for {step.calls[call].collective} {call}", begin_s, end_s, {})
    for number, (made, span) in enumerate(zip(step.calls, timeline.calls, strict=True)):
        args = {"size_bytes": made.size_bytes, "dtype": made.dtype, "algorithm": span.algorithm}
        yield during(made.group + 1, f"{made.collective} {number}", span.begin_s, span.end_s, args)
